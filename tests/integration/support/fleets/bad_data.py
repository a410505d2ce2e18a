# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Data that no one should have written: for hypothesis, as plain data and as bytes of a key."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

# fmt: off
_TEXTS = (
    "", " ", "\0", "a\0b", "\n", "\u202e", "\x1b[2J", "٣", "²", "é" * 300, "\U0001f642", "None", "null", "NaN",
    "-Infinity", "true", "yes", "no", "0", "-1", "1.5", "1e400", "9" * 5000, "9" * 20 + "d", "9" * 5000 + "%", "101%", "5 %",
    "0%", "a/b", "../..", "a?b#c%20", "/", "(", "(" * 2000, "a{99999999999}", "[[a]", "(?P<a>x)(?P<a>y)", "(?i", "*",
    "25:00", "22:00", "24:00", "mon-", "-", "Mars/Phobos", "/etc/passwd", "..", "0001-01-01", "9999-12-31T23:59:59-23:59",
    "2026-13-01", "rest", "canary", "compute", "compute3", "a" * 20_000, "{}", "[]", '"', "'", '\\', '\\"', "`",
)
_NO_JSON = (
    b"", b" ", b"\0", b"\xff", b"\xff\xfe\x00", b"{", b"[]", b"null", b"NaN", b"7", b"9" * 5000, b"'a'", b'"a"', b"[" * 20_000,
    b'{"a":' * 20_000, b"x" * 100_000, b"\xef\xbb\xbf{", "\U0001f642".encode(),
    # A surrogate comes in a key of Consul's alone: Ansible itself lets none through to a module.
    b'{"version": "\\ud800", "state": "\\ud800", "by": "\\ud800", "reason": "\\ud800", "\\ud800": 1}',
)
_NUMBERS = (-1, 0, 1, 2**31, 2**63, 2**64, 10**12, 10**30, 10**400, -(10**400), 1e308, float("inf"), float("nan"), -0.0)
# fmt: on

SAMPLES = st.sampled_from(_TEXTS)
TEXTS = st.one_of(SAMPLES, st.text(st.characters(exclude_categories=("Cs",)), max_size=12))
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 200), st.sampled_from(_NUMBERS), st.floats(width=32), TEXTS
)


def deep(levels: int, *, mapping: bool) -> Any:
    """Return a list of a list of a list, or as many mappings."""
    found: Any = 1
    for _level in range(levels):
        found = {"a": found} if mapping else [found]
    return found


DEEP = st.builds(deep, st.sampled_from((5, 60, 300)), mapping=st.booleans())
_NAMES = st.one_of(
    st.sampled_from(
        ("42", "compute9", "compute1\n", " compute2", "cömpute3", "a\ufffd1", "x?y#1%20", "a" + "9" * 400, "..")
    ),
    st.text(st.characters(exclude_categories=("Cs",), exclude_characters="/\0"), min_size=1, max_size=8),
)
# fmt: off
_FOLDERS = (
    "running/versions/1/", "running/versions/2/", "running/versions/", "upgrade/hosts/", "upgrade/hold/host/", "upgrade/hold/",
    "upgrade/health/", "upgrade/job_health/", "upgrade/approval/", "upgrade/drivers/", "upgrade/history/", "upgrade/",
    "config_state/enable_puppet/host/", "config_state/enable_puppet/",
)
# fmt: on
_PLACES = ("upgrade/schema", "current_version", "upgrade/history/7", "upgrade/drivers/compute2", "upgrade/hold/")
KEYS = st.one_of(
    st.sampled_from(_PLACES), st.builds(lambda folder, name: folder + name, st.sampled_from(_FOLDERS), _NAMES)
)
VALUES = st.one_of(
    SCALARS,
    SCALARS,
    DEEP,
    st.recursive(
        SCALARS,
        lambda below: st.one_of(st.lists(below, max_size=3), st.dictionaries(TEXTS, below, max_size=3)),
        max_leaves=6,
    ),
)


def _places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    below: Any = ()
    if isinstance(document, dict):
        below = document.items()
    elif isinstance(document, list):
        below = enumerate(document)
    for name, value in below:
        yield (*path, name)
        yield from _places(value, (*path, name))


@st.composite
def mutated(draw: st.DrawFn, document: dict[str, Any]) -> dict[str, Any]:
    """Return a document with one place changed: another value, none at all, another name, or one more beside it."""
    found = copy.deepcopy(document)
    *above, name = draw(st.sampled_from(sorted(_places(document), key=str)))
    place: Any = found
    for one in above:
        place = place[one]
    how = draw(st.sampled_from(("value", "value", "value", "gone", "name", "more")))
    if how == "value":
        place[name] = draw(VALUES)
    elif how == "gone":
        del place[name]
    elif isinstance(place, list):
        place.append(draw(VALUES))
    else:
        place[draw(TEXTS)] = place.pop(name) if how == "name" else draw(VALUES)
    return found


def no_json() -> st.SearchStrategy[bytes]:
    """Return bytes that are no JSON mapping, and most of them nothing at all."""
    return st.one_of(st.sampled_from(_NO_JSON), st.binary(max_size=20).filter(_is_no_mapping))


def _is_no_mapping(value: bytes) -> bool:
    try:
        return not isinstance(json.loads(value), dict)
    except ValueError:
        return True


def stored(document: dict[str, Any]) -> st.SearchStrategy[bytes]:
    """Return what may stand in the place of a document in Consul."""
    text = json.dumps(document).encode()
    return st.one_of(
        mutated(document).map(lambda found: json.dumps(found).encode()),
        mutated(document).map(lambda found: json.dumps(found).encode()),
        st.dictionaries(st.sampled_from((*document, "x")), VALUES, max_size=4).map(
            lambda found: json.dumps(found).encode()
        ),
        st.integers(0, len(text) - 1).map(lambda at: text[:at]),
        no_json(),
    )
