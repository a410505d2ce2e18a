# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The live view of rollouts whose hosts upgrade themselves: on a terminal, in lines, and from another machine."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.control import (
    Command,
    abort,
    approve,
    pause,
    resume,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.agent import ROOT, Agent
from devkit.kv import RawKV
from integration.support.fleets.fleet import gates, ledger, names, seed
from integration.support.processes.nodes import living_nodes
from integration.support.processes.proxy import LossyProxy
from integration.support.runs.playbook import wait_until
from integration.support.runs.shipped import Shipped, inventory
from terminal import Terminal

ROLES = {"controller": {"plane": "controlplane"}, "compute": {"plane": "dataplane"}}
RULES = {"rolling_rules": {"global": "unlimited", "roles": {"controller": 1, "compute": 2}}}
HOSTS = names(controller=1, compute=3)
# Between two looks it may go all the way.
ARRIVAL = "compute3 upgraded"
LIVE = {"ANSIBLE_STDOUT_CALLBACK": "convoy.upgrade.rollout"}
UPGRADE: dict[str, Any] = {
    "inventory": inventory(HOSTS),
    "environ": LIVE,
    "version": "2",
    "upgrade_roles": ROLES,
    "instructions": RULES,
}


@contextlib.contextmanager
def closing(terminal: Terminal) -> Iterator[Terminal]:
    try:
        yield terminal
    finally:
        terminal.close()


def say(store: Store, host: str, state: str, *where: str, error: str | None = None) -> None:
    write_report(store, HostReport(host, "2", state, *(where or (None, None)), error=error))


def wait_until_open(consul: RawKV, host: str) -> None:
    wait_until(lambda: gates(consul).get(f"host/{host}") == "True", what=host)


def lines_of(screen: str, *texts: str) -> list[str]:
    """Return the lines that have all of these texts."""
    return [line for line in screen.splitlines() if all(text in line for text in texts)]


def begin(store: Store, version: str = "3") -> None:
    """Begin a rollout as another machine does; its first host is admitted."""
    make_pass(store, PassRequest(version=version, fleet=HOSTS, rules=RULES, role_order={"compute": ["controller"]}))


def daemon_of(seen: Terminal) -> int:
    """Return the daemon of a run: it keeps its log beside its socket."""
    found = []
    for number in seen.processes:
        with contextlib.suppress(OSError):
            files = [one.readlink() for one in Path(f"/proc/{number}/fd").iterdir()]
            if any(file.name == "log" and (file.parent / "socket").exists() for file in files):
                found.append(number)
    assert len(found) == 1, found
    return found[0]


def times_of(screen: str) -> list[str]:
    """Return how long controller1 takes, as far as it is shown."""
    return re.findall(r"controller1 +(\d+:\d\d) ", screen)


def has_begun(screen: str) -> bool:
    """Return whether the first host is drawn as admitted."""
    return bool(lines_of(screen, "controller", "0/1", "1 upgrading"))


@pytest.mark.thorough
def test_a_terminal_shows_bars_hosts_on_their_way_and_how_long_the_rest_takes(
    play: Shipped, consul: RawKV, store: Store
) -> None:
    seed(consul, HOSTS)
    with closing(play.on_terminal("upgrade", **UPGRADE)) as seen:
        screen = seen.wait_for(has_begun)
        assert lines_of(screen, "compute", "0/3", "3 waiting", "░░░")
        assert "2 from 1: 0 of 4 hosts upgraded" in screen
        assert "left" not in screen
        say(store, "controller1", "started", "nginx", "stop")
        seen.wait_for(lambda screen: lines_of(screen, "controller1", "nginx, step stop"))
        # Time goes on by itself.
        at = len(seen.shown)
        seen.wait_for(lambda _screen: len({one for each in seen.shown[at:] for one in times_of(each)}) > 2)
        say(store, "controller1", "upgraded")
        seen.wait_for(
            lambda screen: (
                lines_of(screen, "1 of 4 hosts upgraded", " left")
                and lines_of(screen, "compute", "2 upgrading", "1 waiting")
                and lines_of(screen, "controller", "1/1", "████")
            )
        )
        assert not seen.cursor_is_hidden
        say(store, "compute1", "started")
        say(store, "compute1", "failed", "nova", "start", error="no \x1b[31mred\x1b[0m light\x1b]0;title\x07")
        screen = seen.wait_for(lambda screen: lines_of(screen, "compute", "1 upgrading", "1 failed", "X"))
        say(store, "compute1", "upgraded")
        for host in ("compute2", "compute3"):
            wait_until_open(consul, host)
            say(store, host, "upgraded")
        assert seen.end() == 0
    # What was drawn is gone; what happened, and the table, stays.
    text = seen.text
    assert "░" not in text
    assert "█" not in text
    for there in (
        "controller1 admitted",
        "compute1 failed, service nova, step start: no ?[31mred?[0m light?]0;title?",
        "The rollout to 2 is complete.",
        "4 of 4 hosts upgraded",
    ):
        assert there in text.replace("\n", ""), text
    assert b"]0;title\x07" not in seen.raw
    assert len(re.findall(ARRIVAL, text)) == 1
    # Nothing of Ansible's own stream.
    for stream in ("TASK [", "PLAY [", "ok: [", "skipping"):
        assert stream not in text
    assert text.index("The rollout to 2 is complete.") < text.index("fleet ")


@pytest.mark.thorough
def test_without_color_or_terminal_progress_is_reported_in_lines(
    play: Shipped, consul: RawKV, store: Store, agent: Agent
) -> None:
    seed(consul, HOSTS)
    with living_nodes(Settings(port=agent.http_port), HOSTS, "2"):
        done = play("upgrade", **UPGRADE)
    assert done.returncode == 0, done.stdout
    assert "controller1 admitted" in done.stdout
    assert len(re.findall(ARRIVAL, done.stdout)) == 1
    assert "-- 2: compute 3/3, controller 1/1; 0 upgrading, 0 waiting" in done.stdout
    assert "The rollout to 2 is complete." in done.stdout
    assert "4 of 4 hosts upgraded" in done.stdout
    for none in ("TASK [", "ok: [", "\x1b", "█"):
        assert none not in done.stdout

    # From here on nothing is left to be done, but to look.
    no_colour = {**UPGRADE, "environ": {**LIVE, "NO_COLOR": "1"}}
    begin(store)
    with closing(play.on_terminal("status", **no_colour, follow=True)) as seen:
        seen.wait_for("controller1 admitted")
        write_report(store, HostReport("controller1", "3", "started"))
        abort(store, Command(by="ann", reason="logins fail"))
        assert seen.end() == 0
        assert b"\x1b" not in seen.raw
    assert "The rollout to 3 was aborted. 1 host that had begun continues." in seen.text


@pytest.mark.thorough
def test_who_follows_sees_it_from_consul_alone_through_pauses_to_its_end(
    play: Shipped, consul: RawKV, store: Store
) -> None:
    seed(consul, HOSTS)
    begin(store, "2")
    before = consul.tree()
    with closing(play.on_terminal("status", **UPGRADE, follow=True)) as seen:
        seen.wait_for(has_begun)
        assert consul.tree() == before
        pause(store, Command(by="ann", reason="logins fail"))
        seen.wait_for(
            lambda screen: (
                lines_of(screen, "2 from 1: 0 of 4 hosts upgraded, paused")
                and "No host is admitted; hosts in flight finish: the rollout is paused by ann" in screen
            )
        )
        say(store, "controller1", "upgraded")
        seen.wait_for(lambda screen: lines_of(screen, "controller", "1/1"))
        assert seen.process.poll() is None
        resume(store, Command(by="ann"))
        seen.wait_for("It continues.")
        while not make_pass(store, PassRequest(version="2", fleet=HOSTS, converge=True)).plan.complete:
            for host in HOSTS:
                if gates(consul).get(f"host/{host}") == "True":
                    say(store, host, "upgraded")
        assert seen.end() == 0
    text = seen.text.replace("\n", "")
    for there in ("No host is admitted", "logins fail", "It continues.", "compute3 ", "The rollout to 2 is complete."):
        assert there in text, seen.text
    assert seen.text.index("The rollout to 2 is complete.") < seen.text.index("fleet ")


@pytest.mark.thorough
def test_a_terminal_shows_the_stages_who_is_awaited_and_the_command_to_give(
    play: Shipped, consul: RawKV, store: Store
) -> None:
    seed(consul, HOSTS)
    rules = {**RULES, "stages": [{"name": "canary", "hosts": ["compute1"], "approve": True}, {"name": "rest"}]}
    make_pass(store, PassRequest(version="2", fleet=HOSTS, rules=rules))
    with closing(play.on_terminal("status", **UPGRADE, follow=True)) as seen:
        screen = seen.wait_for("stages: canary 0/1 > rest 0/3")
        assert "Needs an operator" not in screen
        say(store, "compute1", "upgraded")
        make_pass(store, PassRequest(version="2", fleet=HOSTS, converge=True))
        screen = seen.wait_for("Needs an operator: ")
        assert lines_of(screen, "stages: canary 1/1, needs an approval > rest 0/3")
        (need,) = lines_of(screen, "Needs an operator: ")
        assert "Stage canary" in need and "approval" in need
        # It is long, and on several lines.
        first, *_more, last = screen.partition(need)[2].strip().splitlines()
        assert re.match(r"ansible-playbook \S+/playbooks/approve\.yml -i", first)
        assert last.endswith(" -e stage=canary")
        approve(store, Command(by="bob"), "canary")
        make_pass(store, PassRequest(version="2", fleet=HOSTS))
        screen = seen.wait_for(lambda screen: "Needs an operator" not in screen and lines_of(screen, "1 upgrading"))
        assert lines_of(screen, "stages: canary 1/1 > rest 0/3")
        abort(store, Command(by="bob"))
        assert seen.end() == 0


@pytest.mark.thorough
def test_a_consul_that_goes_away_is_reported_and_asked_again(
    play: Shipped, consul: RawKV, store: Store, agent: Agent
) -> None:
    seed(consul, HOSTS)
    begin(store, "2")
    with LossyProxy(agent.http_port) as proxy:
        there = {**LIVE, "CONSUL_HTTP_ADDR": f"127.0.0.1:{proxy.port}"}
        options = {**UPGRADE, "environ": there, "upgrade_consul_timeout": 1}
        with closing(play.on_terminal("status", **options, follow=True)) as seen:
            seen.wait_for(has_begun)
            proxy.loses_all = True
            say(store, "controller1", "upgraded")
            seen.wait_for(
                lambda screen: (
                    lines_of(screen, "controller", "0/1")
                    and lines_of(screen, "Shown as of", "Consul at http://127.0.0.1", "can't be reached")
                )
            )
            proxy.loses_all = False
            seen.wait_for(lambda screen: lines_of(screen, "controller", "1/1"))
            assert "Shown as of" not in seen.screen
            assert "Consul is back." in seen.text
            asked = proxy.reads
            for host in ("compute1", "compute2"):
                say(store, host, "upgraded")
            seen.wait_for(lambda screen: lines_of(screen, "compute", "2/3"))
            # A look for each change at most, and none without one.
            assert proxy.reads - asked <= 2
            abort(store, Command(by="ann"))
            assert seen.end() == 0


@pytest.mark.thorough
def test_who_kills_the_follower_stops_nothing(play: Shipped, consul: RawKV, store: Store) -> None:
    seed(consul, HOSTS)
    with closing(play.on_terminal("upgrade", **UPGRADE)) as seen:
        seen.wait_for(has_begun)
        os.kill(daemon_of(seen), signal.SIGKILL)
        seen.wait_for("The rollout continues.")
        assert "▓" not in seen.screen
        for host in HOSTS:
            wait_until_open(consul, host)
            say(store, host, "upgraded")
        assert seen.end() == 0
    assert ledger(consul)["state"] == "complete"
    assert len(re.findall(ARRIVAL, seen.text)) == 1
    assert "4 of 4 hosts upgraded" in seen.text

    # And who follows from elsewhere is no part of it at all.
    begin(store)
    with closing(play.on_terminal("status", **UPGRADE, follow=True)) as seen:
        seen.wait_for(has_begun)
        os.kill(seen.process.pid, signal.SIGKILL)
        wait_until(lambda: not seen.processes, 30, "the end of all of it")
    assert ledger(consul)["state"] == "running"


@pytest.mark.thorough
def test_without_the_library_it_says_what_to_install_and_goes_on_in_lines(
    play: Shipped, consul: RawKV, store: Store
) -> None:
    seed(consul, HOSTS)
    begin(store, "2")
    abort(store, Command(by="ann"))
    broken = play.folder / "rich"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('this machine has none')\n")
    # And the configuration of the example is all that it takes.
    there = {"ANSIBLE_CONFIG": str(ROOT / "tools" / "demo" / "ansible.cfg"), "PYTHONPATH": str(play.folder)}
    with closing(play.on_terminal("status", **{**UPGRADE, "environ": there}, follow=True)) as seen:
        assert seen.end() == 0
    text = " ".join(seen.text.split())
    assert "The live view needs the Python library 'rich'" in text
    assert "pip install rich" in text
    assert "The rollout to 2 was aborted." in text
