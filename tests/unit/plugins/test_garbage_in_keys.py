# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whatever stands in Consul, all that reads it gives an answer or a named fault, and nothing in it acts on a terminal.

``CONVOY_TEST_GARBAGE=1000000`` tries so many fleets, each of which is drawn from its number.
"""

from __future__ import annotations

import copy
import io
import json
import os
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.ledger import MOST_EPOCH
from ansible_collections.convoy.upgrade.plugins.module_utils._host.gate_question import ask_gate
from ansible_collections.convoy.upgrade.plugins.module_utils._host.leases import decode_holder
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.notifications import SentNotifications
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._queries import notifications
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.fleet_info import read_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.follow import progress_update
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.info_result import info_result
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.inventory import InventoryOptions, survey_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.metrics import metrics_text
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.rollout_report import read_rollout_report
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.command import Command
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.control import approve, pause
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.modules.consul_upgrade_plan import as_result as plan_result
from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe import plan_text, status_text
from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe.screen import drawing
from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe.view_updates import ViewUpdates
from ansible_collections.convoy.upgrade.plugins.plugin_utils._pages.live_page import LivePage
from ansible_collections.convoy.upgrade.plugins.plugin_utils._pages.report_files import report_files
from memory_consul import MemoryConsul
from rich.console import Console

CASES = int(os.environ.get("CONVOY_TEST_GARBAGE", "2000"))
CHUNKS = 20
_AT = 1_750_000_000

_LEDGER = {
    "epoch": 6,
    "version": "2.0",
    "previous_version": "1.0",
    "state": "running",
    "who": "ann@desk",
    "since": _AT,
    "commit": "c6",
    "members": {"web": 4, "db": 2},
    "begun_index": 3,
    "services": {"web": "a1"},
    "rollouts": [1, 4],
    "history_from": 1,
    "broken": ["db1"],
    "stopped": [],
    "rollback": False,
    "role_pattern": "([a-z]+)",
    "command": {"by": "ann", "at": _AT, "reason": "why not"},
    "stage": {"number": 0, "done_at": _AT},
    "instructions": {
        "rolling_rules": {"global": 1, "roles": {"web": 2}, "fleet": "50%"},
        "role_order": {"web": "db"},
        "group_mappings": {"all": ["web", "db"]},
        "failure_rules": {"global": 1},
        "health": {"soak": 60, "progress_deadline": 3600, "consul_checks": ["serfHealth"]},
        "stages": [{"name": "canary", "hosts": 1, "approve": True}],
        "history": {"keep_rollouts": 5},
    },
}
_RECORD = {
    "version": "2.0",
    "state": "started",
    "service": "nginx",
    "step": "stop",
    "attempt": 2,
    "error": "no",
    "times": {"started": _AT + 60, "failed": _AT + 30},
    "reported": "1.0",
    "done": ["upgrade/nginx@1.5"],
    "post": "open",
    "origin": "1.0",
    "trail": [[_AT + 60, "nginx", "stop"]],
    "former": [{"version": "1.0", "state": "upgraded", "attempt": 1, "times": {"upgraded": 5}, "trail": []}],
}
_EVENTS = {
    1: {"what": "begin", "from": "1.0", "instructions": _LEDGER["instructions"], "reason": "ann asked for 2.0"},
    2: {"what": "open", "hosts": {"web1": "a rule"}, "roles": {"db": {"hosts": 2, "reason": "a rule"}}},
    3: {"what": "retry", "hosts": {"web1": "it was failed"}, "by": "bob", "reason": "again"},
    4: {"what": "publish", "hosts": {"web2": "2.0"}},
    5: {"what": "stage", "stage": "canary", "reason": "stage canary began"},
    6: {"what": "pause", "by": "ann", "reason": "lunch"},
}
_DOCUMENTS: dict[str, Any] = {
    "upgrade/ledger": _LEDGER,
    "upgrade/hosts/web1": _RECORD,
    "upgrade/hosts/web2": {**_RECORD, "state": "upgraded", "times": {"started": _AT, "upgraded": _AT + 9}},
    "upgrade/hosts/web4": {**_RECORD, "state": "failed"},
    "upgrade/hold/host/web3": {"reason": "a disk", "by": "ann", "at": "2026-01-01 10:00:00 +0000"},
    "upgrade/health/web2": {"version": "2.0", "since": _AT, "upgraded": True, "reported": _AT, "lost": True},
    "upgrade/approval/canary": {"by": "ann", "at": _AT, "reason": "fine"},
    "upgrade/providers/cloud": {
        "version": "1.0",
        "target": "2.0",
        "host": "web1",
        "task_group": "u",
        "done": [],
        "at": _AT,
    },
    "upgrade/migration": {"state": "kept", "from": 0, "to": 1, "phase": "p", "done": 1, "of": 2, "by": "a", "since": 5},
    "upgrade/notified": {"epoch": 2, "broken": ["web4"], "approval": "", "stage": "", "ended": False},
    "upgrade/once/2.0/db": {"state": "running", "host": "db1", "by": "ann", "at": _AT},
    "upgrade/drivers/web1": {"by": "a", "since": 5, "session": "s", "machine": "m", "pid": 1, "started": 2},
    **{
        f"upgrade/history/{epoch}": {
            "epoch": epoch,
            "at": _AT + epoch,
            "who": "ann@desk",
            "commit": f"c{epoch}",
            "version": "2.0",
            **event,
        }
        for epoch, event in _EVENTS.items()
    },
}
# What a job adds, and changes.
_OF_JOB: dict[str, Any] = {
    "upgrade/ledger": {
        **{name: value for name, value in _LEDGER.items() if name not in ("stage", "services")},
        "version": "job/restart-1",
        "targets": {"roles": ["web"], "hosts": ["db1"]},
        "expires": _AT + 900,
        "before": _LEDGER,
    },
    "upgrade/jobs/restart-1": {
        "id": "restart-1",
        "command": "restart",
        "expires": _AT + 900,
        "args": {"grace": 30},
        "roles": ["web"],
        "hosts": ["db1"],
        "signature": "s",
        "by": "ann",
        "at": _AT,
        "reason": "a key",
    },
    **{
        f"upgrade/job_records/{host}": {
            "job": "restart-1",
            "run": "r1",
            "state": state,
            "attempt": 1,
            "times": {"started": _AT + 5, state: _AT + 9},
            "error": "no disk",
            "exit_status": 3,
            "machine": "m",
            "release": "0.1.0",
            "role": "web",
        }
        for host, state in (("web1", "failed"), ("web2", "done"), ("db1", "started"))
    },
    "upgrade/job_output/web1": [
        {
            "job": "restart-1",
            "run": "r1",
            "command": "restart",
            "attempt": 1,
            "state": "failed",
            "exit_status": 3,
            "at": _AT + 9,
            "seconds": 1.5,
            "error": "no disk",
            "output": "one\ntwo",
        }
    ],
    "upgrade/handover": {"version": "2.0", "since": _AT, "limit": ["web"], "id": "i", "by": "ann", "at": _AT},
    "upgrade/planners/p1": {"by": "ann", "since": _AT, "handover": "i", "refusal": ""},
}
_TEXTS_OF_JOB = {
    "upgrade/current_job": "job/restart-1",
    "upgrade/job_gates/global": "False",
    "upgrade/job_gates/host/web1": "True",
}
_TEXTS = {
    "current_version": "2.0",
    "upgrade/schema": "1",
    "config_state/enable_puppet/global": "False",
    "config_state/enable_puppet/host/web1": "True",
    "config_state/enable_puppet/role/db": "2.0",
    "running/versions/1.0/web1": str(_AT - 900),
    "running/versions/2.0/web2": str(_AT + 9),
    "running/versions/1.0/web3": str(_AT - 900),
    "running/versions/1.0/web4": "",
    "running/versions/2.0/db1": str(_AT - 9),
    "running/versions/1.0/db2": str(_AT - 900),
}


def _keys(documents: Mapping[str, Any], texts: Mapping[str, str]) -> dict[str, bytes]:
    found = {key: json.dumps(value).encode() for key, value in documents.items()}
    return found | {key: value.encode() for key, value in texts.items()}


_FLEET = _keys(_DOCUMENTS, _TEXTS)
_FOLDERS = (
    *("running/versions/2.0/", "running/versions/", "running_version/2.0/", "running_version/", "upgrade/hosts/"),
    *("upgrade/hold/host/", "upgrade/hold/role/", "upgrade/hold/", "upgrade/health/", "upgrade/approval/"),
    *("upgrade/drivers/", "upgrade/providers/", "upgrade/history/", "upgrade/once/2.0/", "upgrade/"),
    *("config_state/enable_puppet/host/", "config_state/enable_puppet/role/", "config_state/enable_puppet/"),
    *("config_state/", "config_state/host/web1/", "current_version", "upgrade/jobs/", "upgrade/job_records/"),
    *("upgrade/job_output/", "upgrade/job_gates/host/", "upgrade/job_gates/", "upgrade/planners/"),
)
_GARBAGE = (
    *(
        "",
        " ",
        "\0",
        "\n",
        "\r",
        "2.0\r1",
        "web1\r",
        "\x1b[2J",
        "web\x1b]0;x\x071",
        "\u202e",
        "\x85",
        "\u2028",
        "\ufffd",
        "٣",
        "²",
    ),
    *(
        "\udc80",
        "\ud800x",
        "9" * 5000,
        "-1",
        "1e400",
        "0",
        "9007199254740991",
        "9007199254740990",
        "9" * 18,
        "true",
        "None",
        "null",
    ),
    *(
        "a" * 300,
        "web5",
        "web5\n",
        " web6",
        "a/b",
        "/",
        "//",
        "..",
        "=cmd()",
        "@a",
        "\t=1",
        "{{ 7 * 7 }}",
        "{%",
        "it's",
        "a;b|c",
    ),
    *(
        "(" * 3000,
        "(" * 90,
        "a{99999999}",
        "(a{999}){999}",
        "[",
        "*",
        "((a))",
        "25:00",
        "50%",
        "1e9%",
        "9" * 400 + "%",
        "(?i",
    ),
    *(
        "begin",
        "open",
        "retry",
        "publish",
        "failed",
        "started",
        "upgraded",
        "retried",
        "complete",
        "abort",
        "False",
        "2.0",
    ),
)
_NUMBERS = (
    *(-1, 0, 1, 2**31, 2**32, 2**53 - 1, 2**53, 2**63, 2**64, 10**12, 253_402_300_800, 10**30, 10**400, -(2**53 - 1)),
    *(-(10**400), 1e308, -1e308, 1.5, float("inf"), float("nan"), -0.0),
)
_NO_JSON = (
    *(
        b"",
        b" ",
        b"\0",
        b"\xff",
        b"\xff\xfe\x00",
        b"{",
        b"[]",
        b"{}",
        b"null",
        b"NaN",
        b"7",
        b'"a"',
        b"9" * 5000,
        b"1e400",
    ),
    *(
        b"[" * 5000,
        b"[" * 200 + b"]" * 200,
        b'{"a":' * 5000,
        b"\xef\xbb\xbf{",
        b"inf",
        b"nan",
        b"-1e308",
        b"1_0",
        b"\x1b[2J",
    ),
    *(b"True", b"False\r", b"2.0\n", b"\r2.0", b"2.0\r1", b"2.0\x1b[2J", b"3.0", b"False\x00", b"x" * 600_000),
)


def _value(drawn: random.Random, depth: int = 0) -> Any:
    kind = drawn.randrange(9 if depth < 3 else 6)
    if kind < 3:
        return drawn.choice(_GARBAGE)
    if kind < 5:
        return drawn.choice(_NUMBERS)
    if kind == 5:
        return drawn.choice((None, True, False))
    if kind == 6:
        return [_value(drawn, depth + 1) for _each in range(drawn.randrange(4))]
    if kind == 7:
        return {drawn.choice(_GARBAGE): _value(drawn, depth + 1) for _each in range(drawn.randrange(4))}
    # A copy, because a second change may be made in it.
    return copy.deepcopy(drawn.choice([*_DOCUMENTS.values()]))


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    """Yield all containers of a document with each of their names or places."""
    below = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for name, value in below:
        yield data, name
        yield from _places(value)


def _changed(drawn: random.Random, document: Any) -> bytes:
    """Return a document with one or two of its places changed."""
    found = json.loads(json.dumps(document))
    for _change in range(drawn.choice((1, 1, 2))):
        places = [*_places(found)]
        if not places:
            break
        container, name = drawn.choice(places)
        how = drawn.randrange(6)
        if how < 4:
            container[name] = _value(drawn)
        elif how == 4:
            del container[name]
        elif isinstance(container, list):
            container.append(_value(drawn))
        else:
            container[drawn.choice(_GARBAGE)] = container.pop(name)
    return json.dumps(found).encode()


def garbage(number: int) -> dict[str, bytes]:
    """Return the keys of a fleet with garbage in some of them, the same for each number."""
    drawn = random.Random(number)
    # In some fleets, a job is under way or was the last thing.
    has_job = number % 3 == 0
    documents, texts = ({**_DOCUMENTS, **_OF_JOB}, {**_TEXTS, **_TEXTS_OF_JOB}) if has_job else (_DOCUMENTS, _TEXTS)
    fleet = _keys(documents, texts)
    keys = dict(fleet)
    for _change in range(drawn.choice((1, 1, 2, 4))):
        how = drawn.randrange(8)
        if how < 4:
            key = drawn.choice([*documents])
            keys[key] = _changed(drawn, documents[key])
        elif how == 4:
            keys[drawn.choice([*fleet])] = drawn.choice(_NO_JSON)
        elif how == 5:
            keys[drawn.choice([*texts])] = drawn.choice(_GARBAGE).encode(errors="replace")
        elif how == 6:
            name = "/".join(drawn.choice(_GARBAGE) for _part in range(drawn.choice((1, 1, 2))))
            value = drawn.choice((*_NO_JSON, *fleet.values()))
            # Consul takes no longer ones.
            keys[(drawn.choice(_FOLDERS) + name)[:500]] = value
        else:
            keys.pop(drawn.choice([*fleet]), None)
    return keys


def _is_harmless(found: Any) -> bool:
    """Return whether no text in plain data could act on a terminal."""
    if isinstance(found, str):
        return found.isprintable()
    if isinstance(found, dict):
        return all(_is_harmless(name) and _is_harmless(value) for name, value in found.items())
    return all(map(_is_harmless, found)) if isinstance(found, (list, tuple)) else True


def _check(found: Any) -> None:
    """Refuse what Ansible could not pass on, or what could act on a terminal."""
    json.dumps(found)
    assert _is_harmless(found), found


def _check_file(text: str) -> None:
    text.encode()
    assert all(map(str.isprintable, text.split("\n"))), text


def _info(store: Store) -> None:
    """Look at all, and at one host that is always there, as its role is given."""
    view = read_fleet(store, fleet={"web1": "web"}, history=20, name="web1")
    result = info_result(view, "web1")
    lines = status_text.host_lines(result["host"])
    for job in result["host"]["jobs"]:
        # Its lines are kept.
        job["output"] = job["output"].split("\n")
    _check([result, status_text.status_lines(result), lines, view.warnings])


def _plan(store: Store) -> None:
    result = plan_result(make_pass(store, PassRequest(), dry=True))
    diff = result.pop("diff")
    _check([result, plan_text.plan_lines(result)])
    _check_file(diff["before"] + diff["after"])


def _report(store: Store) -> None:
    for name, text in report_files(read_rollout_report(store)).items():
        _check(name)
        _check_file(text)


def _page(store: Store) -> None:
    with tempfile.TemporaryDirectory() as folder:
        page = LivePage(store, folder, dry=True)
        page.update(progress_update(read_fleet(store, fleet={"web1": "web"})))
        assert page.warning == ""
        for text in page.texts.values():
            _check_file(text)


def _metrics(store: Store) -> None:
    text = metrics_text(store, read_fleet(store))
    _check_file(text)
    assert text.endswith("# EOF\n")


def _notifications(store: Store) -> None:
    sight = notifications.read_rollout(store, None)
    kept = notifications.read_sent(store) or notifications.initial_state(store, sight, dry=True)
    found, after = notifications.new_notifications(store, sight, kept)
    _check([[sight.payload(one), asdict(one)] for one in found])
    _check(after.plain())


def _inventory(store: Store) -> None:
    found = survey_fleet(store, InventoryOptions())
    _check([found.hosts, found.left_out, found.warnings])


def _lookup(store: Store) -> None:
    _check([asdict(one) for one in ask_gate(store, {"web1": "web", "web3": "web", "db2": "db"}).values()])


def _live_view(store: Store) -> None:
    updates = progress_update(read_fleet(store))
    _check(asdict(ViewUpdates().update(updates)))
    drawn = io.StringIO()
    Console(file=drawn, width=80).print(drawing(updates.progress, float(_AT), 80, 24))
    _check_file(drawn.getvalue())


def _commands(store: Store) -> None:
    for act in (pause, approve):
        try:
            done = act(store, Command(), dry=True)
        except UpgradeError as error:
            if error.code in _ANSWERS:
                continue
            raise
        # Only the pattern is kept as it is stored, and the module does not return it.
        _check([{**asdict(done.ledger), "role_pattern": None}, done.hosts, done.remarks])


_ANSWERS = ("not_running", "no_rollout", "nothing_to_approve", "no_approval", "not_waiting")
READERS: tuple[Callable[[Store], None], ...] = (
    *(_info, _plan, _report, _page, _metrics, _notifications, _inventory, _lookup, _live_view, _commands),
)


def try_one(number: int, readers: Sequence[Callable[[Store], None]] = READERS) -> set[str]:
    """Let readers read one fleet; return the codes of the faults that they named."""
    codes = set()
    with MemoryConsul(garbage(number), nodes=("web1", "db1")).in_place() as consul:
        for reader in readers:
            try:
                reader(Store(Settings()))
            except UpgradeError as error:
                _check([error.message, error.code, error.details])
                codes.add(error.code)
            except Exception as error:
                raise AssertionError(f"{reader.__name__} of fleet {number}: {error!r}") from error
        assert consul.requests < 1500, number
    return codes


@pytest.mark.parametrize("has_job", [False, True])
def test_a_fleet_without_garbage_is_read_by_all(*, has_job: bool) -> None:
    keys = _keys({**_DOCUMENTS, **_OF_JOB}, {**_TEXTS, **_TEXTS_OF_JOB}) if has_job else dict(_FLEET)
    with MemoryConsul(keys, nodes=("web1", "db1")).in_place():
        for reader in READERS:
            reader(Store(Settings()))


@pytest.mark.thorough
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_garbage_is_read_or_named(chunk: int) -> None:
    for number in range(chunk, CASES, CHUNKS):
        try_one(number)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_all_of_the_garbage_is_read_or_named_by_some(chunk: int) -> None:
    for number in range(chunk, CASES, CHUNKS):
        # All readers have the same decoders. Which of them read a fleet changes from one to the next.
        try_one(number, READERS[number // CHUNKS % 3 :: 3])


@pytest.mark.parametrize("epoch", [10**15, MOST_EPOCH - 1, MOST_EPOCH])
def test_a_ledger_with_an_epoch_that_no_planner_counted_to_is_paused_and_reported(epoch: int) -> None:
    ledger = json.dumps({**_LEDGER, "epoch": epoch}).encode()
    with MemoryConsul({**_FLEET, "upgrade/ledger": ledger}).in_place() as consul:
        store = Store(Settings())
        done = pause(store, Command(reason="odd"))
        assert done.ledger.state == "paused"
        # Where no epoch can follow, the history goes on, and no entry of it is written over.
        assert done.ledger.epoch == (7 if epoch == MOST_EPOCH else epoch + 1)
        assert json.loads(consul.keys[f"upgrade/history/{done.ledger.epoch}"])["what"] == "pause"
        sight = notifications.read_rollout(store, None)
        _found, kept = notifications.new_notifications(store, sight, SentNotifications(2))
        assert kept.epoch == done.ledger.epoch
        assert consul.requests < 50


def test_who_holds_a_key_is_not_taken_from_garbage() -> None:
    holder = {"by": "a", "since": 5, "session": "s-1", "machine": "m", "pid": 1, "started": 2}
    assert decode_holder(json.dumps(holder).encode()) is not None
    for name, value in (("session", "../../kv/x"), ("since", 10**400), ("pid", "1/../2"), ("by", 5), ("started", -1)):
        assert decode_holder(json.dumps({**holder, name: value}).encode()) is None, name
