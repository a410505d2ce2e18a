# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Providers from keys that the collection wrote, that an operator wrote, and that are invalid."""

from __future__ import annotations

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._codecs.provider import (
    decode_provider,
    encode_provider,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.providers import Provider


@pytest.mark.parametrize(
    "provider",
    [
        Provider("2.4"),
        Provider("2.4", host="web1", at=9),
        Provider("2.4", "2.6", "web1", "upgrade/cloud@2.6", ("prepare/cloud",), "it broke", 9),
        # The version before the upgrade was not known.
        Provider("", "2.6", "web1", "upgrade/cloud"),
    ],
)
def test_what_is_written_is_read(provider: Provider) -> None:
    assert decode_provider("k", encode_provider(provider).encode()) == provider


def test_the_state_follows_from_the_fields() -> None:
    states = [Provider("1"), Provider("1", "2"), Provider("1", "2", error="x")]
    assert [one.state for one in states] == ["upgraded", "upgrading", "failed"]
    assert [one.is_at("1") for one in states] == [True, False, False]


def test_texts_that_were_written_by_hand_are_sanitized() -> None:
    found = decode_provider("k", b'{"version": "1", "host": "a\\u001b[2J", "error": "b\\nc"}')
    assert (found.host, found.error) == ("a?[2J", "b c")


@pytest.mark.parametrize(
    "value",
    [
        b"", b"2.2", b"[]", b"\xff", b"{}", b'{"version": 2}', b'{"version": "a/b"}', b'{"version": "true"}',
        b'{"version": "1", "target": 2}', b'{"version": "2.4", "target": "-1.0"}',
        b'{"version": "2.4", "target": "$(reboot)"}', b'{"version": "1", "done": [1]}', b'{"version": "1", "at": "now"}',
        b'{"version": "1", "at": 1e99}', b'{"version": "1", "done": ["' + b"x" * 30_000 + b'"]}', b"[" * 100_000,
    ],
)  # fmt: skip
def test_an_unreadable_provider_has_no_version_and_an_error_with_the_fix(value: bytes) -> None:
    found = decode_provider("upgrade/providers/cloud", value)
    assert (found.version, found.readable, found.state) == ("", False, "failed")
    assert found.error.startswith("upgrade/providers/cloud can't be read (")
    assert found.error.endswith(
        'Write the version that it runs, such as {"version": "2.4"}, or delete the key and declare the version again.'
    )
    assert len(found.error) < 1000
