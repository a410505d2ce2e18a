# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Wrong answers in Consul's place: a call ends with a true result or an error code, and no lost write counts as applied."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul import client, transport
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.errors import Unreachable
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._host.gate_question import ask_gate
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport as Report
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.fleet_info import read_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.inventory import InventoryOptions, survey_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.acl import TokenKind, grant, revoke
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.command import Command
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.control import pause
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.gate import reset_gates, set_gate
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.hold import HoldTargets, set_holds
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from memory_consul import Answer, MemoryConsul

_PAGE = "<html><body>\x1b[2JWelcome to the proxy</body></html>"
_BODIES = (
    *(
        "",
        "{}",
        "[]",
        "null",
        "true",
        "7",
        '"a"',
        "[[]]",
        "[null]",
        "[{}]",
        "{",
        "[" * 5000,
        "9" * 5000,
        _PAGE,
        "\x1b[2J\rno",
    ),
    *(
        '{"Results": 7}',
        '{"Results": [7]}',
        '{"Results": [{"KV": null}]}',
        '{"Errors": {}}',
        '{"Errors": [7]}',
        '{"ID": 7}',
    ),
    *(
        '{"Errors": [{"OpIndex": 99, "What": "stale"}]}',
        '{"Errors": [{"OpIndex": "0"}]}',
        '[{"Node": 7}]',
        '["\\ud800"]',
    ),
    '{"Results": [{"KV": {"Key": "upgrade/ledger", "Value": "%%", "ModifyIndex": 7}}]}',
    '{"Results": [{"KV": {"Key": "upgrade/other", "Value": null, "ModifyIndex": 7}}], "Errors": null}',
    '{"Errors": [{"OpIndex": 0, "What": "\\u001b[2J"}]}',
)
_ODD = [Answer(code, body, {}) for body in _BODIES for code in (200, 400, 403, 404, 409, 500)]
_ODD.append(Answer(200, "[]", {"X-Consul-Index": "\x1b"}))
_LEDGER = json.dumps({"epoch": 3, "version": "2.0", "state": "running"}).encode()
_KEYS: Mapping[str, bytes] = {
    "current_version": b"2.0",
    "upgrade/ledger": _LEDGER,
    "config_state/enable_puppet/global": b"False",
    "config_state/enable_puppet/host/web1": b"True",
    "running/versions/1.0/web1": b"1",
}


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not sleep between tries."""
    monkeypatch.setattr(client.runtime, "sleep", lambda _seconds: None)


def _paused(store: Store, consul: MemoryConsul) -> None:
    pause(store, Command(by="ann"))
    assert json.loads(consul.keys["upgrade/ledger"])["state"] == "paused"
    assert [key for key in consul.keys if "history" in key] == ["upgrade/history/4"]


def _set(store: Store, consul: MemoryConsul) -> None:
    changes = set_gate(store, "host", "web1", False)
    assert consul.keys["config_state/enable_puppet/host/web1"] == b"False"
    assert len(changes) == 1


def _reset(store: Store, consul: MemoryConsul) -> None:
    reset_gates(store)
    assert {key: value for key, value in consul.keys.items() if "config_state" in key} == {
        "config_state/enable_puppet/global": b"False"
    }


def _held(store: Store, consul: MemoryConsul) -> None:
    set_holds(store, HoldTargets(hosts=("web1",)), "a disk")
    assert "upgrade/hold/host/web1" in consul.keys


def _reported(store: Store, consul: MemoryConsul) -> None:
    write_report(store, Report("web1", "2.0", "upgraded"))
    assert json.loads(consul.keys["upgrade/hosts/web1"])["state"] == "upgraded"
    # If the token may not publish the version, planners do.
    is_published = json.loads(consul.keys["upgrade/hosts/web1"]).get("reported") == "2.0"
    assert ("running/versions/2.0/web1" in consul.keys) == is_published
    assert ("running/versions/1.0/web1" not in consul.keys) == is_published


def _asked(store: Store, _consul: MemoryConsul) -> None:
    # Without its own gate, the global one decides; without any gate, the host would be open.
    found = ask_gate(store, {"web2": "web"})
    assert not found["web2"].value


def _read(store: Store, _consul: MemoryConsul) -> None:
    assert set(read_fleet(store, history=5).plan.hosts) == {"web1"}


def _surveyed(store: Store, _consul: MemoryConsul) -> None:
    assert set(survey_fleet(store, InventoryOptions()).hosts) == {"web1"}


def _watched(store: Store, _consul: MemoryConsul) -> None:
    assert isinstance(store.wait_for_change(1, 0.1, ("upgrade/",)), int)


def _granted(store: Store, _consul: MemoryConsul) -> None:
    assert grant(store, TokenKind("viewer")).secret
    revoke(store, TokenKind("viewer"))


_CALLS = (_paused, _set, _reset, _held, _reported, _asked, _read, _surveyed, _watched, _granted)


def _spoiling(at: int, odd: Answer) -> Callable[[str, str, Answer], Answer]:
    """Return a function that spoils one answer of a call, and none after it."""
    left = [at]

    def spoil(_method: str, _path: str, answer: Answer) -> Answer:
        left[0] -= 1
        return odd if left[0] == -1 else answer

    return spoil


def _call(act: Callable[[Store, MemoryConsul], None], consul: MemoryConsul) -> str:
    """Return the code of the error that a call ended with; empty if the call succeeded."""
    with consul.in_place():
        try:
            act(Store(Settings(timeout=0.2)), consul)
        except UpgradeError as error:
            assert error.message.isprintable(), error.message
            return error.code
    return ""


@pytest.mark.parametrize("act", _CALLS[:-1])
def test_one_wrong_answer_at_any_moment(act: Callable[[Store, MemoryConsul], None]) -> None:
    for at in range(4):
        for odd in _ODD:
            consul = MemoryConsul(dict(_KEYS), nodes=("web1",), spoil=_spoiling(at, odd))
            code = _call(act, consul)
            assert code in _FAULTS, (act, at, odd)


@pytest.mark.parametrize("act", _CALLS)
@pytest.mark.parametrize(
    "odd",
    [
        *(Answer(code, _PAGE, {}) for code in (200, 400, 403, 404, 409)),
        *(Answer(code, '{"message": "Forbidden"}', {}) for code in (400, 401, 403)),
        *(Answer(code, body, {}) for code, body in ((404, "404 page not found"), (403, "Forbidden"), (408, ""))),
    ],
)
def test_what_a_proxy_answers_counts_as_a_temporary_outage(
    act: Callable[[Store, MemoryConsul], None], odd: Answer
) -> None:
    consul = MemoryConsul(dict(_KEYS), nodes=("web1",), spoil=lambda *_: odd)
    with consul.in_place(), pytest.raises(Unreachable, match="not Consul's API"):
        act(Store(Settings(timeout=0.05)), consul)


# Other codes that a call may end with, where Consul itself gives such an answer, such as 403.
_FAULTS = ("", "unreachable", "denied", "consul_error", "conflict", "foreign_policy", "busy")


@pytest.mark.parametrize(
    ("reason", "passes"),
    [
        ("EOF occurred in violation of protocol (_ssl.c:992)", True),
        ("[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred in violation of protocol", True),
        ("certificate verify failed: Hostname mismatch, certificate is not valid for 'geoffrey'", False),
        ("[SSL: WRONG_VERSION_NUMBER] wrong version number", False),
    ],
)
def test_only_a_cut_handshake_passes(reason: str, passes: bool) -> None:
    assert transport._is_cut(reason) == passes
