# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers of a simulated HAProxy. tests/services/test_haproxy.py has a real one."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._common.runtime import Runtime, use
from ansible_collections.convoy.upgrade.plugins.module_utils._node import haproxy
from ansible_collections.convoy.upgrade.plugins.module_utils._node.haproxy import (
    HaproxyApi,
    HaproxyServer,
    ServerChange,
    parse_servers,
    set_server,
)

UP, DRAIN, MAINT = ("UP", 0), ("DRAIN", 8), ("MAINT", 1)


def answers(**servers: tuple[str, int]) -> tuple[str, str]:
    """Answers of HAProxy 2.6 on servers, with only the fields that are read."""
    stat = [
        "# pxname,svname,qcur,qmax,scur,smax,status,weight",
        *(f"app,{n},1,5,2,9,{s[0]},1" for n, s in servers.items()),
    ]
    state = ["1", "# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state"]
    state += [
        f"3 app {number} {name} 10.0.0.{number} 2 {one[1]}" for number, (name, one) in enumerate(servers.items(), 1)
    ]
    return "\n".join([*stat, "app,BACKEND,0,0,0,0,UP,2"]), "\n".join(state)


class FixedServers(HaproxyApi):
    """A runtime API whose servers change only through commands."""

    def __init__(self, sessions: int = 0, **servers: tuple[str, int]) -> None:
        super().__init__("/run/haproxy.sock")
        self.found = {
            name: HaproxyServer("app", name, status, sessions, admin) for name, (status, admin) in servers.items()
        }
        self.orders: list[str] = []

    def servers(self, backend: str) -> list[HaproxyServer]:
        assert backend == "app"
        return list(self.found.values())

    def order(self, command: str) -> None:
        self.orders.append(command)
        kind, _keyword, name = command.partition(" server app/")
        name, _keyword, state = name.partition(" state ")
        if kind == "shutdown sessions":
            self.found[name] = HaproxyServer("app", name, "DRAIN", 0, 8)
            return
        status, admin = {"ready": UP, "drain": DRAIN, "maint": MAINT}[state]
        self.found[name] = HaproxyServer("app", name, status, self.found[name].sessions, admin)


def test_a_server_with_a_failed_or_no_check_yet_gets_sessions_and_is_not_healthy() -> None:
    stat, state = answers(web1=("UP 1/2", 0), web2=UP, web3=("no check", 0), web4=("DOWN 1/2", 0))
    servers = parse_servers(stat, state, "app")
    assert [(one.serves, one.is_healthy) for one in servers] == [
        (True, False),
        (True, True),
        (True, True),
        (False, False),
    ]


def test_answers_are_read() -> None:
    stat, state = answers(web1=UP, web2=("DOWN", 8), web3=("MAINT (via other/web1)", 2), web4=("no check", 0))
    servers = parse_servers(stat, state, "app")
    assert [(one.name, one.state, one.serves, one.sessions) for one in servers] == [
        ("web1", "ready", True, 3),
        ("web2", "drained", False, 3),
        ("web3", "maintenance", False, 3),
        ("web4", "ready", True, 3),
    ]
    assert parse_servers(stat, state, "other") == []
    assert parse_servers("No such proxy.", "Can't find backend.", "app") == []


@pytest.mark.parametrize(
    ("before", "goal", "orders"),
    [
        (UP, "drained", ["set server app/web1 state drain"]),
        (UP, "maintenance", ["set server app/web1 state maint"]),
        (UP, "ready", []),
        (DRAIN, "ready", ["set server app/web1 state ready"]),
        (DRAIN, "drained", []),
        (("DOWN", 8), "ready", ["set server app/web1 state ready"]),
        (MAINT, "drained", []),
        (MAINT, "ready", ["set server app/web1 state ready"]),
    ],
)
def test_a_server_gets_only_commands_that_change_it(before: tuple[str, int], goal: str, orders: list[str]) -> None:
    runtime = FixedServers(web1=before, web2=UP)
    assert set_server(runtime, "app", "web1", ServerChange(goal, 0), dry=True)["changed"] is bool(orders)
    assert runtime.orders == []
    assert set_server(runtime, "app", "web1", ServerChange(goal, 0))["changed"] is bool(orders)
    assert runtime.orders == orders


def test_what_is_in_maintenance_can_be_kept_there() -> None:
    runtime = FixedServers(web1=MAINT)
    result = set_server(runtime, "app", "web1", ServerChange("ready", 0, keep_maintenance=True))
    assert (result["changed"], result["status"], runtime.orders) == (False, "MAINT", [])
    assert result["before"] == {"state": "maintenance", "status": "MAINT", "sessions": 0}


def test_a_server_of_weight_0_is_back_without_being_up() -> None:
    assert set_server(FixedServers(web1=("DRAIN", 0)), "app", "web1", ServerChange("ready", 0))["status"] == "DRAIN"


def test_the_last_serving_server_is_not_taken_out_but_one_that_does_not_serve_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(haproxy, "LOCK", str(tmp_path / "lock"))
    with pytest.raises(
        UpgradeError, match=r"^app/web1 is not taken out: 1 other server .* must serve, and none would\."
    ) as caught:
        set_server(FixedServers(web1=UP, web2=("DOWN", 0)), "app", "web1", ServerChange("drained", 0, others=1))
    assert caught.value.code == "too_few_servers"
    assert set_server(FixedServers(web1=("DOWN", 0)), "app", "web1", ServerChange("drained", 0, others=1))["changed"]
    assert set_server(FixedServers(web1=UP, web2=UP), "app", "web1", ServerChange("drained", 0, others=1))["changed"]
    monkeypatch.setattr(haproxy, "LOCK", str(tmp_path / "no/where/lock"))
    with pytest.raises(UpgradeError, match=r"/no/where/lock can't be opened: No such file or directory"):
        set_server(FixedServers(web1=UP, web2=UP), "app", "web1", ServerChange("drained", 0, others=1))


def test_sessions_that_do_not_end_fail_or_are_cut_off() -> None:
    with pytest.raises(UpgradeError, match=r"^app/web1 gets no new sessions any more, but has 4 ") as caught:
        set_server(FixedServers(4, web1=UP), "app", "web1", ServerChange("drained", 0))
    assert caught.value.code == "still_busy"
    runtime = FixedServers(4, web1=UP)
    assert set_server(runtime, "app", "web1", ServerChange("drained", 0, shut=True))["sessions"] == 0
    assert runtime.orders[-1] == "shutdown sessions server app/web1"


class Clock(Runtime):
    """A clock that only sleeping moves."""

    seconds = 1000.0

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


def test_sessions_have_their_full_time_however_long_the_others_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(haproxy, "LOCK", str(tmp_path / "lock"))
    clock = Clock()

    class Returning(FixedServers):
        def servers(self, backend: str) -> list[HaproxyServer]:
            if clock.seconds > 1090:
                self.found["web2"] = HaproxyServer("app", "web2", "UP", 0, 0)
            if clock.seconds > 1150:
                self.found["web1"] = HaproxyServer("app", "web1", "DRAIN", 0, 8)
            return super().servers(backend)

    before = use(clock)
    servers = {"web1": UP, "web2": ("DOWN", 0)}
    try:
        with pytest.raises(UpgradeError, match="1 other server of the backend must serve"):
            set_server(Returning(4, **servers), "app", "web1", ServerChange("drained", 100, others=1, others_seconds=5))
        assert 1005 < clock.seconds < 1010
        found = set_server(Returning(4, **servers), "app", "web1", ServerChange("drained", 100, others=1))
    finally:
        use(before)
    assert (found["changed"], found["sessions"]) == (True, 0)
    assert 1150 < clock.seconds < 1200


def test_the_error_for_an_unknown_server_names_the_others() -> None:
    with pytest.raises(UpgradeError, match=r"no server web9 in its backend app; it has: web1, web2\.$"):
        set_server(FixedServers(web1=UP, web2=UP), "app", "web9", ServerChange("ready", 0))


@pytest.mark.parametrize("address", ["/nowhere/haproxy.sock", "127.0.0.1:1", "no-address"])
def test_an_api_that_does_not_answer_is_an_error(address: str) -> None:
    with pytest.raises(UpgradeError, match=rf"^HAProxy's runtime API at {address} does not answer: ") as caught:
        HaproxyApi(address).call("show info")
    assert caught.value.code == "haproxy_unreachable"


def test_a_refusal_of_the_api_is_an_error(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()

        def answer() -> None:
            connection, _address = listening.accept()
            with connection:
                assert connection.recv(100) == b"set server app/web1 state drain\n"
                connection.sendall(b"Permission denied\n\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(
            UpgradeError, match=r"refused 'set server app/web1 state drain': Permission denied The socket"
        ):
            HaproxyApi(path).order("set server app/web1 state drain")
        thread.join()


def test_a_backup_server_can_take_over_from_a_backup_server_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    stat = "# pxname,svname,qcur,scur,status,act,bck\napp,web1,0,3,UP,1,0\napp,web2,0,0,DOWN,1,0\napp,sorry,0,0,no check,0,1\n"
    state = "1\n# be_id be_name srv_id srv_name srv_admin_state\n" + "".join(
        f"3 app {number} {name} 0\n" for number, name in enumerate(("web1", "web2", "sorry"))
    )
    found = parse_servers(stat, state, "app")
    monkeypatch.setattr(HaproxyApi, "servers", lambda *_: found)
    api = HaproxyApi("nowhere")
    assert [one.name for one in api.server("app", "web1")[1]] == ["web2"]
    assert [one.name for one in api.server("app", "sorry")[1]] == ["web1", "web2"]
