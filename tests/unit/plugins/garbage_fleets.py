# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The keys of a fleet, and of fleets with garbage in some of their keys."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator, Mapping
from typing import Any

AT = 1_750_000_000

LEDGER = {
    "epoch": 6,
    "version": "2.0",
    "previous_version": "1.0",
    "state": "running",
    "who": "ann@desk",
    "since": AT,
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
    "command": {"by": "ann", "at": AT, "reason": "why not"},
    "stage": {"number": 0, "done_at": AT},
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
    "times": {"started": AT + 60, "failed": AT + 30},
    "reported": "1.0",
    "done": ["upgrade/nginx@1.5"],
    "post": "open",
    "origin": "1.0",
    "trail": [[AT + 60, "nginx", "stop"]],
    "former": [{"version": "1.0", "state": "upgraded", "attempt": 1, "times": {"upgraded": 5}, "trail": []}],
}
_EVENTS = {
    1: {"what": "begin", "from": "1.0", "instructions": LEDGER["instructions"], "reason": "ann asked for 2.0"},
    2: {"what": "open", "hosts": {"web1": "a rule"}, "roles": {"db": {"hosts": 2, "reason": "a rule"}}},
    3: {"what": "retry", "hosts": {"web1": "it was failed"}, "by": "bob", "reason": "again"},
    4: {"what": "publish", "hosts": {"web2": "2.0"}},
    5: {"what": "stage", "stage": "canary", "reason": "stage canary began"},
    6: {"what": "pause", "by": "ann", "reason": "lunch"},
}
_DOCUMENTS: dict[str, Any] = {
    "upgrade/ledger": LEDGER,
    "upgrade/hosts/web1": _RECORD,
    "upgrade/hosts/web2": {**_RECORD, "state": "upgraded", "times": {"started": AT, "upgraded": AT + 9}},
    "upgrade/hosts/web4": {**_RECORD, "state": "failed"},
    "upgrade/hold/host/web3": {"reason": "a disk", "by": "ann", "at": "2026-01-01 10:00:00 +0000"},
    "upgrade/health/web2": {"version": "2.0", "since": AT, "upgraded": True, "reported": AT, "lost": True},
    "upgrade/approval/canary": {"by": "ann", "at": AT, "reason": "fine"},
    "upgrade/providers/cloud": {
        "version": "1.0",
        "target": "2.0",
        "host": "web1",
        "task_group": "u",
        "done": [],
        "at": AT,
    },
    "upgrade/migration": {"state": "kept", "from": 0, "to": 1, "phase": "p", "done": 1, "of": 2, "by": "a", "since": 5},
    "upgrade/notified": {"epoch": 2, "broken": ["web4"], "approval": "", "stage": "", "ended": False},
    "upgrade/once/2.0/db": {"state": "running", "host": "db1", "by": "ann", "at": AT},
    "upgrade/drivers/web1": {"by": "a", "since": 5, "session": "s", "machine": "m", "pid": 1, "started": 2},
    **{
        f"upgrade/history/{epoch}": {
            "epoch": epoch,
            "at": AT + epoch,
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
        **{name: value for name, value in LEDGER.items() if name not in ("stage", "services")},
        "version": "job/restart-1",
        "targets": {"roles": ["web"], "hosts": ["db1"]},
        "expires": AT + 900,
        "before": LEDGER,
    },
    "upgrade/jobs/restart-1": {
        "id": "restart-1",
        "command": "restart",
        "expires": AT + 900,
        "args": {"grace": 30},
        "roles": ["web"],
        "hosts": ["db1"],
        "signature": "s",
        "by": "ann",
        "at": AT,
        "reason": "a key",
    },
    **{
        f"upgrade/job_records/{host}": {
            "job": "restart-1",
            "run": "r1",
            "state": state,
            "attempt": 1,
            "times": {"started": AT + 5, state: AT + 9},
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
            "at": AT + 9,
            "seconds": 1.5,
            "error": "no disk",
            "output": "one\ntwo",
        }
    ],
    "upgrade/handover": {"version": "2.0", "since": AT, "limit": ["web"], "id": "i", "by": "ann", "at": AT},
    "upgrade/planners/p1": {"by": "ann", "since": AT, "handover": "i", "refusal": ""},
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
    "running/versions/1.0/web1": str(AT - 900),
    "running/versions/2.0/web2": str(AT + 9),
    "running/versions/1.0/web3": str(AT - 900),
    "running/versions/1.0/web4": "",
    "running/versions/2.0/db1": str(AT - 9),
    "running/versions/1.0/db2": str(AT - 900),
}


def _keys(documents: Mapping[str, Any], texts: Mapping[str, str]) -> dict[str, bytes]:
    found = {key: json.dumps(value).encode() for key, value in documents.items()}
    return found | {key: value.encode() for key, value in texts.items()}


def _contents(*, has_job: bool) -> tuple[dict[str, Any], dict[str, str]]:
    """Return documents and texts of a fleet by their keys."""
    return ({**_DOCUMENTS, **_OF_JOB}, {**_TEXTS, **_TEXTS_OF_JOB}) if has_job else (_DOCUMENTS, _TEXTS)


def sound(*, has_job: bool) -> dict[str, bytes]:
    """Return the keys of a fleet without garbage.

    :param has_job: whether a job is under way or was the last thing.
    """
    return _keys(*_contents(has_job=has_job))


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
    documents, texts = _contents(has_job=number % 3 == 0)
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
