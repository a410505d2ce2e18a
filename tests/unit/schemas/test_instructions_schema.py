# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The schema of instructions accepts what the parser accepts: editors agree with it."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from datetime import date, datetime
from typing import Any

import pytest
import yaml
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.instructions import KEYS, parse
from devkit.agent import ROOT
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft7Validator

SCHEMA = json.loads((ROOT / "schemas/instructions.json").read_text())
VALIDATOR = Draft7Validator(SCHEMA)

# What no schema can find, in the text of the refusal.
BEYOND = (
    "a cycle, so none of these can begin",
    "disagrees with role_dependencies",
    "is not a valid regular expression",
    "is the name of an earlier stage too",
    "takes all remaining hosts",
    "has no effect",
    "is not a time zone that is known",
    "does not come after from",
    "is longer than ten years",
    "is not a date or time: give a date, or date and time",
    "a control character",
    # A date of YAML is text to what reads the schema.
    "datetime.date(",
)

NAMES = st.sampled_from(("web", "compute", "a.b", "stages[0]"))
TEXTS = st.one_of(NAMES, st.lists(NAMES, min_size=1, max_size=2))
CAPS = st.sampled_from((0, 3, 999999999999, "0", " 7 ", "007", "0%", "10%", "100 %", "000100%"))
CAPS_ABOVE_0 = st.sampled_from((1, 3, "1", " 7 ", "010", "1%", "100 %"))
TIMES = st.sampled_from((0, 90, "0", "90", " 15m", "2 h", "1d", "90s"))
TIMES_ABOVE_0 = st.sampled_from((1, "90", " 15m", "2 h", "010d"))
BEGINS = st.sampled_from(("22:00", "7:30", " 00:00 ", 0, 60, 1320))
ENDS = BEGINS | st.sampled_from(("24:00", 1440))
DAYS = st.sampled_from(("mon", "Monday", "mond", "mon-fri", "SAT - sun", "thurs"))
MOMENTS = st.sampled_from(("2026-12-20", "2026-12-20T18:00", "2026-12-20 18:00:01+01:00", date(2026, 12, 20)))
LATER = st.sampled_from(("2027-12-20", "2027-12-20T18:00Z", datetime(2027, 1, 6, 12)))
ZONES = st.sampled_from(("UTC", "Europe/Berlin", "Etc/GMT+8"))
NONE = st.none()


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return mappings that may leave out each of these fields."""
    return st.fixed_dictionaries({}, optional=fields)


STAGE = some(name=st.sampled_from((None, "", "canary")), roles=NONE | TEXTS, soak=NONE | TIMES, approve=st.booleans())
HOSTS = CAPS_ABOVE_0 | st.lists(NAMES, min_size=1, max_size=2)
GOOD = some(
    rolling_rules=NONE
    | some(
        **{"global": NONE | CAPS, "roles": NONE | st.dictionaries(NAMES, CAPS, max_size=2), "fleet": NONE | CAPS},
        complete_sets=st.booleans(),
    ),
    role_order=NONE | st.dictionaries(st.sampled_from(("z1", "z2")), TEXTS),
    group_mappings=NONE | st.dictionaries(NAMES, st.sampled_from(("web", ["ceph_mon", "ceph_osd$"])), max_size=2),
    failure_rules=NONE
    | some(
        **{
            "global": NONE | CAPS_ABOVE_0,
            "roles": NONE | st.dictionaries(NAMES, NONE | CAPS_ABOVE_0, max_size=2),
            "fleet": NONE | CAPS_ABOVE_0,
        }
    ),
    health=NONE
    | some(soak=NONE | TIMES, progress_deadline=NONE | TIMES_ABOVE_0, consul_checks=NONE | TEXTS | st.just([])),
    stages=NONE
    | st.lists(st.builds(lambda stage, hosts: {**stage, "hosts": hosts}, STAGE, HOSTS), max_size=2).map(
        lambda found: [{**stage, "name": f"{stage.get('name') or 'tenth'} {at}"} for at, stage in enumerate(found)]
    ),
    windows=NONE
    | st.lists(
        st.fixed_dictionaries(
            {"from": BEGINS, "to": ENDS},
            optional={"days": NONE | DAYS | st.lists(DAYS, min_size=1, max_size=2), "timezone": ZONES},
        ),
        max_size=2,
    ),
    freezes=NONE
    | st.lists(
        st.fixed_dictionaries(
            {"from": MOMENTS, "to": LATER},
            optional={"timezone": ZONES, "reason": st.sampled_from((None, "", "holidays"))},
        ),
        max_size=2,
    ),
    history=NONE | some(keep_rollouts=NONE | st.sampled_from((2, 50, 1000, "2", " 99 ", "0100", "000000001000"))),
    optional_names=NONE | TEXTS | st.just([]),
)

# What an operator may write in the wrong place, and half of it is right in another one. No 5.0, as JSON takes it for 5.
ODD: st.SearchStrategy[Any] = st.sampled_from(
    (None, True, False, -1, 0, 1, 2, 22, 1000, 1001, 1320, 1441, 1.5, 10**12, "", " ", "x", "a/b", "-1", "0", "00%", "5", "10%", "101%",
     "5%%", "15m", "0s", "1y", "9999d", "22:00", "7:5", "26:00", "24:01", "mon", "mo", "mon-", "mon-fri", "foo",
     "tomorrow", "2026-12-20", "2026-13-45", "UTC", "Mars/Olympus", "(", 'say "x"', "a\nb", " a",
     [], {}, [[]], [""], ["x"], [1], ["mon", 1], {"x": 1}, {"x": "y"}, {"x": None}, {"": "y"}, date(2026, 12, 20))
)  # fmt: skip
FIELDS = st.sampled_from(
    (*KEYS, "global", "roles", "fleet", "soak", "name", "from", "keep_rollouts", "rolles", "$schema", "")
)


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield all places in a document, the whole of it excepted."""
    below = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for step, value in below:
        yield (*path, step)
        yield from places(value, (*path, step))


@st.composite
def mistaken(draw: st.DrawFn) -> dict[str, Any]:
    """Return good rules with one to three things changed, of which most are mistakes."""
    rules: dict[str, Any] = copy.deepcopy(draw(GOOD))
    for _time in range(draw(st.integers(1, 3))):
        found = [*places(rules)]
        path = draw(st.sampled_from(found)) if found else ()
        node: Any = rules
        for step in path[:-1]:
            node = node[step]
        what = draw(st.sampled_from(("replace", "replace", "drop", "add")))
        target = node[path[-1]] if path else rules
        if what == "add" or not path:
            (target if isinstance(target, dict) else rules)[draw(FIELDS)] = copy.deepcopy(draw(ODD))
        elif what == "drop":
            del node[path[-1]]
        else:
            node[path[-1]] = copy.deepcopy(draw(ODD))
    return rules


def refusal_of(rules: dict[str, Any]) -> str:
    """Return the parser's error for rules, an empty text if it accepts them."""
    try:
        parse(rules)
    except UpgradeError as error:
        return error.message
    return ""


def fits(rules: dict[str, Any]) -> bool:
    """Return whether the schema accepts them. Editors know no dates but as text."""
    return bool(VALIDATOR.is_valid(json.loads(json.dumps(rules, default=lambda at: at.isoformat()))))


def test_the_schema_is_one() -> None:
    Draft7Validator.check_schema(SCHEMA)
    assert set(SCHEMA["properties"]) == set(KEYS)


@given(GOOD)
def test_what_the_parser_takes_the_schema_takes(rules: dict[str, Any]) -> None:
    refusal = refusal_of(rules)

    assert not refusal
    assert fits(rules), [error.message for error in VALIDATOR.iter_errors(rules)]


@given(mistaken())
def test_the_schema_refuses_what_the_parser_refuses_and_nothing_else(rules: dict[str, Any]) -> None:
    refusal = refusal_of(rules)

    if fits(rules):
        assert not refusal or any(sentence in refusal for sentence in BEYOND), refusal
    else:
        assert refusal, "the schema alone refuses it"


def test_the_examples_of_the_documents_fit() -> None:
    found = []
    for file in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for block in file.read_text().split("```yaml\n")[1:]:
            data = yaml.safe_load(block.partition("```")[0])
            data = data.get("all", data).get("vars", data) if isinstance(data, dict) else {}
            if isinstance(data.get("instructions"), dict):
                found.append(data["instructions"])

    assert len(found) >= 2
    assert [rules for rules in found if refusal_of(rules) or not fits(rules)] == []


@pytest.mark.parametrize(
    "rules",
    [
        {"rolling_rulez": {}},
        {"rolling_rules": {"roles": {"compute": "110%"}}},
        {"failure_rules": {"fleet": "0"}},
        {"health": {"progress_deadline": "0s"}},
        {"health": {"consul_checks": ['a"b']}},
        {"stages": [{"hosts": 1, "approve": "yes"}]},
        {"windows": [{"from": "22:00"}]},
        {"windows": [{"from": 22, "to": 1320}]},
        {"freezes": [{"from": "tomorrow", "to": "2027-01-01"}]},
    ],
)
def test_an_editor_reports_common_mistakes(rules: dict[str, Any]) -> None:
    assert refusal_of(rules)
    assert not fits(rules)
