# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Planner services: they carry rollouts that were handed over, take over from each other, and stand still in doubt."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from alertmanager import active_silences, running_alertmanager
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.operations import put
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import control as operator
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.acl import TokenKind, grant
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.hold import HoldTargets, set_holds
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout.handover import hand_over, wait_for_planner
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.agent import ROOT, Agent
from devkit.child import start
from devkit.kv import RawKV
from integration.support.fleets.fleet import gates, ledger, names, seed
from integration.support.processes.guarded import MASTER, guarded_agent
from integration.support.processes.planner_service import Nodes, Service, carried, open_hosts, running, until
from integration.support.runs.commands import upgrade
from integration.support.runs.shipped import Shipped
from slowdown import slowdown
from thorough import quick

pytestmark = pytest.mark.one_release

Start = Callable[..., Service]
ONE: dict[str, Any] = {"rolling_rules": {"global": 1}}
HOSTS = names(web=6)


def _begin(store: Store, consul: RawKV, limit: list[str] | None = None, rules: dict[str, Any] | None = None) -> None:
    """Begin a rollout as an operator does, and hand it over."""
    seed(consul, HOSTS)
    made = make_pass(store, PassRequest("2", rules or ONE, limit=limit))
    assert made.ledger is not None
    hand_over(store, made.ledger, limit, dry=False)


def hand_over_now(store: Store) -> None:
    """Hand the rollout over as it is, as an operator does who admits no host meanwhile."""
    made = make_pass(store, PassRequest(since=1, limit=["web6"]))
    assert made.ledger is not None
    hand_over(store, made.ledger, None, dry=False)


def test_it_carries_a_rollout_to_its_end_and_waits_for_the_next(service: Start, store: Store, consul: RawKV) -> None:
    one = service()
    one.says("standing_by", "no rollout has begun")
    assert until(lambda: running(consul)) == ["upgrade/planners/one"]
    with Nodes(store, consul, HOSTS):
        _begin(store, consul)
        until(lambda: ledger(consul)["state"] == "complete")
    one.says("standing_by", "the rollout to 2 is complete")
    # The operator's pass admitted the first one.
    assert one.admitted() == ["web2", "web3", "web4", "web5", "web6"]
    assert gates(consul) == {"global": "True"}
    one.says("complete", "2: web 6/6")
    assert one.end() == 0
    assert running(consul) == []


def test_it_admits_no_host_of_a_rollout_that_was_not_handed_over(service: Start, store: Store, consul: RawKV) -> None:
    seed(consul, HOSTS)
    make_pass(store, PassRequest("2", ONE))
    one = service()
    text = one.says("standing_by", "was not handed over")
    assert text.endswith("To hand it over, run ansible-playbook convoy.upgrade.upgrade -e version=2 -e wait=false.")
    upgrade(store, "web1")
    epoch = ledger(consul)["epoch"]
    time.sleep(2.5)
    assert ledger(consul)["epoch"] == epoch
    assert open_hosts(consul, HOSTS) == ["web1"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("value", "why"),
    [
        ('{"version": "2", "only_at_night": true}', "only_at_night"),
        ("[", "can't be read"),
        ("", "can't be read"),
    ],
)
def test_a_handover_that_it_does_not_understand_admits_no_host(
    service: Start, store: Store, consul: RawKV, value: str, why: str
) -> None:
    _begin(store, consul)
    if why == "only_at_night":
        value = json.dumps({**json.loads(consul.get("upgrade/handover") or b""), "only_at_night": True})
    consul.put("upgrade/handover", value)
    one = service()
    one.says("standing_by", why)
    upgrade(store, "web1")
    time.sleep(1.8)
    assert one.admitted() == []


@pytest.mark.thorough
def test_a_newer_layout_admits_no_host_and_goes_on_once_it_is_gone(service: Start, store: Store, consul: RawKV) -> None:
    _begin(store, consul)
    consul.put("upgrade/schema", "7")
    one = service()
    one.says("newer_schema", "supports layouts up to 1")
    consul.put("running/versions/2/web1", str(int(time.time())))
    time.sleep(1.5)
    assert one.admitted() == []
    consul.put("upgrade/schema", "1")
    until(one.admitted)


@pytest.mark.thorough
def test_it_admits_only_hosts_of_the_limit_until_the_next_handover(service: Start, store: Store, consul: RawKV) -> None:
    _begin(store, consul, ["web1", "web2"])
    one = service()
    with Nodes(store, consul, HOSTS):
        until(lambda: one.admitted() == ["web2"])
        time.sleep(2)
        assert one.admitted() == ["web2"]
        hand_over_now(store)
        until(lambda: ledger(consul)["state"] == "complete")


def test_those_that_stand_by_take_over_within_two_seconds_from_one_that_is_killed(
    service: Start, store: Store, consul: RawKV
) -> None:
    services = [service(name) for name in ("one", "two", "three", "four")]
    _begin(store, consul)
    until(lambda: len(running(consul)) == 4)
    for one in services:
        one.says("carrying")
    seconds: list[float] = []
    slower: list[float] = []
    for host, following in itertools.pairwise(("web1", "web2", "web3", "web4", "web5")):
        slower.append(slowdown())
        began = time.monotonic()
        if host != "web1":
            acting = next(one for one in services if one.admitted()[-1:] == [host])
            acting.kill()
            services.remove(acting)
        upgrade(store, host)
        until(lambda following=following: following in open_hosts(consul, HOSTS))
        seconds.append(time.monotonic() - began)
        # Its log comes after its write.
        until(lambda following=following: any(following in one.admitted() for one in services))
    print(f"\nhand-over after kill -9: {', '.join(f'{one:.2f} s' for one in seconds[1:])}")
    slower.append(slowdown())
    # Other tests load the machine. Consul keeps the session of a dead process for 15 s at least.
    factors = [max(1.0, *around) for around in itertools.pairwise(slower)]
    assert all(one < 2 * factor for one, factor in zip(seconds[1:], factors[1:], strict=True)), (seconds, factors)
    assert max(seconds[1:]) < 15


def test_the_foreground_command_of_the_readme_runs_one(agent: Agent, consul: RawKV, tmp_path: Path) -> None:
    readme = (ROOT / "roles/planner/README.md").read_text()
    (command,) = re.findall(r"^```console\n(PYTHONPATH=.* --settings settings\.yml)$", readme, re.MULTILINE)
    collections = tmp_path / ".ansible/collections/ansible_collections/convoy"
    collections.mkdir(parents=True)
    (collections / "upgrade").symlink_to(ROOT)
    (tmp_path / "settings.yml").write_text(f"name: one\nconsul: {{port: {agent.http_port}}}\n")
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    process = start(
        ["bash", "-c", command],
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        until(lambda: running(consul) == ["upgrade/planners/one"])
    finally:
        process.terminate()
        shown, _nothing = process.communicate(timeout=60)
    assert process.returncode == 0, shown
    assert "The service stopped." in shown
    assert running(consul) == []


def test_one_that_was_killed_and_started_again_says_at_once_that_it_carries_a_rollout(
    service: Start, store: Store, consul: RawKV
) -> None:
    one = service()
    until(lambda: running(consul))
    one.kill()
    again = service()
    again.says("standing_by")
    seed(consul, HOSTS)
    made = make_pass(store, PassRequest("2", ONE))
    assert made.ledger is not None
    handed = hand_over(store, made.ledger, None, dry=False)
    # Consul keeps the session of a dead process for 15 s at least.
    assert wait_for_planner(store, handed.id, 10) == ("one",)
    assert again.messages("same_name") == []


@pytest.mark.thorough
def test_the_one_that_acts_does_so_at_once_and_the_other_one_only_watches(
    service: Start, store: Store, consul: RawKV
) -> None:
    services = [service(name) for name in ("one", "two")]
    _begin(store, consul)
    with Nodes(store, consul, HOSTS) as nodes:
        until(lambda: ledger(consul)["state"] == "complete")
    hosts = [host for one in services for host in one.admitted()]
    assert sorted(hosts) == ["web2", "web3", "web4", "web5", "web6"]
    # From the second admission on, a single one works.
    assert 5 in [len(one.admitted()) for one in services]
    pauses = [nodes.done[f"web{n + 1}"] - nodes.done[f"web{n}"] for n in range(2, 6)]
    print(f"\nfrom one host to the next: {', '.join(f'{one:.2f} s' for one in pauses)}")
    # It does not wait for a quiet second.
    assert min(pauses) < 1.0


@pytest.mark.thorough
def test_a_suspended_one_obeys_the_rules_of_now_when_it_goes_on(service: Start, store: Store, consul: RawKV) -> None:
    one = service("one")
    one.says("standing_by")
    _begin(store, consul)
    upgrade(store, "web1")
    until(lambda: one.admitted() == ["web2"])
    two = service("two")
    two.says("carrying")
    one.suspend()
    upgrade(store, "web2")
    until(lambda: two.admitted() == ["web3"])
    operator.pause(store, operator.Command("lunch"))
    upgrade(store, "web3")
    time.sleep(1.8)
    two.kill()
    one.resume()
    one.says("blocker", "lunch")
    time.sleep(1.5)
    assert one.admitted() == ["web2"]
    operator.resume(store, operator.Command())
    until(lambda: one.admitted() == ["web2", "web4"])


@pytest.mark.parametrize(
    "handed_over_again",
    [
        pytest.param(False, id="same handover", marks=pytest.mark.thorough),
        pytest.param(True, id="another handover since"),
    ],
)
def test_a_consul_that_was_put_back_stops_all_of_them_until_the_next_handover(
    service: Start, store: Store, consul: RawKV, handed_over_again: bool
) -> None:
    one = service()
    _begin(store, consul)
    earlier = consul.texts()
    if handed_over_again:
        # So the handover of the snapshot is another one than that which the service carries.
        hand_over_now(store)
    upgrade(store, "web1")
    until(lambda: one.admitted() == ["web2"])
    assert consul.delete("upgrade/", tree=True)
    consul.load(earlier.items())
    one.says("went_back", "Consul was restored to an earlier time")
    # Also for a service that was not there before the restore.
    until(lambda: consul.get("upgrade/handover") is None)
    other = service("other")
    other.says("standing_by", "was not handed over")
    upgrade(store, "web1")
    time.sleep(2)
    assert one.admitted() == ["web2"]
    assert other.admitted() == []
    hand_over_now(store)
    for host in open_hosts(consul, HOSTS):
        upgrade(store, host)
    until(lambda: len(one.admitted()) + len(other.admitted()) > 1)


@pytest.mark.thorough
def test_a_handover_is_not_that_of_the_next_rollout_to_the_same_version(
    service: Start, store: Store, consul: RawKV
) -> None:
    one = service()
    _begin(store, consul)
    until(lambda: carried(consul))
    upgrade(store, "web1")
    until(lambda: one.admitted() == ["web2"])
    operator.abort(store, operator.Command())
    upgrade(store, "web2")
    time.sleep(1.1)
    # Another operator wants this one host, and carries the rollout without a service.
    make_pass(store, PassRequest("2", ONE, restart=True, limit=["web6"]))
    assert open_hosts(consul, HOSTS) == ["web6"]
    one.says("standing_by", "was not handed over, only one before it")
    upgrade(store, "web6")
    time.sleep(1.8)
    assert one.admitted() == ["web2"]
    assert open_hosts(consul, HOSTS) == ["web6"]


def test_what_goes_on_with_a_rollout_has_the_limit_of_its_handover(service: Start, store: Store, consul: RawKV) -> None:
    _begin(store, consul, ["web2"])
    consul.put("current_version", "3")
    text = service().says("standing_by", "something other than a planner has set it")
    # Without it, the command would admit other hosts.
    assert text.endswith("convoy.upgrade.upgrade -e version=2 -e wait=false, with the limit of the handover (web2).")


@pytest.mark.thorough
def test_a_service_with_fewer_hosts_than_the_run_admits_none(service: Start, store: Store, consul: RawKV) -> None:
    seed(consul, HOSTS)
    one = service(fleet=dict.fromkeys(HOSTS, "web"))
    made = make_pass(store, PassRequest("2", ONE, fleet={**HOSTS, "web7": "web"}))
    assert made.ledger is not None
    handed = hand_over(store, made.ledger, None, dry=False)
    one.says("fleet_too_small", "role web: 6 of its 7 hosts")
    for host in HOSTS:
        upgrade(store, host)
    time.sleep(2)
    assert one.admitted() == []
    assert ledger(consul)["state"] == "running"
    with pytest.raises(UpgradeError) as refused:
        wait_for_planner(store, handed.id, 1)
    assert refused.value.code == "no_planner"
    assert "one: No host is admitted: role web: 6 of its 7 hosts" in refused.value.message


def test_a_rollout_that_has_ended_is_not_handed_over(store: Store, consul: RawKV) -> None:
    seed(consul, HOSTS)
    made = make_pass(store, PassRequest("2", ONE))
    assert made.ledger is not None
    make_pass(store, PassRequest("3", ONE, replace="2"))
    with pytest.raises(UpgradeError) as refused:
        hand_over(store, made.ledger, None, dry=False)
    assert refused.value.code == "overtaken"
    assert "to 3, begun by" in refused.value.message
    assert consul.get("upgrade/handover") is None


@pytest.mark.thorough
def test_without_consul_it_says_so_once_and_goes_on_when_consul_is_there(service: Start) -> None:
    with Agent() as agent:
        port = agent.http_port
        agent.stop()
        one = service(port=port)
        text = one.says("unreachable")
        assert text.startswith("Admits no host: ")
        time.sleep(3)
        assert len(one.messages("unreachable")) == 1
        agent.start()
        one.says("standing_by", "no rollout has begun")
        store, consul = Store(Settings(port=port)), agent.kv
        _begin(store, consul)
        upgrade(store, "web1")
        until(lambda: one.admitted() == ["web2"])
        agent.stop()
        until(lambda: len(one.messages("unreachable")) == 2)
        agent.start()
        upgrade(store, "web2")
        until(lambda: one.admitted() == ["web2", "web3"])


@pytest.mark.thorough
def test_it_writes_the_page_and_the_metrics(service: Start, store: Store, consul: RawKV, tmp_path: Path) -> None:
    page, metrics = tmp_path / "page", tmp_path / "convoy.prom"
    page.mkdir()
    one = service(page=str(page), metrics_file=str(metrics))
    until(metrics.exists)
    with Nodes(store, consul, HOSTS):
        _begin(store, consul)
        until(lambda: ledger(consul)["state"] == "complete")
        until(lambda: '"complete"' in (page / "state.json").read_text())
        until(lambda: 'state="upgraded"} 6' in metrics.read_text())
    assert one.end() == 0
    assert "no longer updated" in (page / "index.html").read_text()


def test_without_a_rollout_the_page_has_each_change_at_once(
    service: Start, store: Store, consul: RawKV, tmp_path: Path
) -> None:
    seed(consul, HOSTS)
    page = tmp_path / "page"
    page.mkdir()

    def written() -> str:
        return "".join(one.read_text() for one in page.rglob("*.json"))

    service(page=str(page))
    until(lambda: "web6" in written())
    # Without a change, the page is only written once a minute.
    set_holds(store, HoldTargets(hosts=("web1",)), "disk is being replaced")
    until(lambda: "disk is being replaced" in written(), 20)
    write_report(store, HostReport("web2", "1", "started", role="web"))
    write_report(store, HostReport("web2", "1", "failed", error="no space left"))
    until(lambda: "no space left" in written(), 20)
    write_report(store, HostReport("web7", "1", "upgraded", role="web"))
    until(lambda: "web7" in written(), 20)


@pytest.mark.thorough
@pytest.mark.parametrize("foreign", ["", "<h1>Our team</h1>"])
def test_a_page_that_it_can_not_write_does_not_stop_the_rollout(
    service: Start, store: Store, consul: RawKV, tmp_path: Path, foreign: str
) -> None:
    page = tmp_path / "page"
    if foreign:
        page.mkdir()
        (page / "index.html").write_text(foreign)
    one = service(page=str(page), metrics_file=str(tmp_path / "none" / "x.prom"))
    text = one.says("bad_folder", "There is no page: ")
    assert ("its index.html is not a page of convoy.upgrade" in text) == bool(foreign)
    one.says("bad_metrics_file", "The metrics are not up to date: ")
    _begin(store, consul)
    upgrade(store, "web1")
    until(lambda: one.admitted() == ["web2"])
    assert len(one.messages("bad_folder")) == 1
    assert [file.name for file in page.glob("*")] == ["index.html"] * bool(foreign)
    assert not foreign or (page / "index.html").read_text() == foreign


@pytest.mark.thorough
def test_it_sends_notifications_and_reports_targets_that_refuse_or_hang(
    service: Start, store: Store, consul: RawKV, tmp_path: Path
) -> None:
    received: list[dict[str, Any]] = []
    over = threading.Event()

    class Webhook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            if self.path == "/hangs":
                over.wait(60)
                return
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(400 if self.path == "/refuses" else 204)
            self.end_headers()

        def log_message(self, *_given: object) -> None:
            """Stay quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Webhook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        file = tmp_path / "notify.json"
        hanging = {"name": "pager", "webhook": f"{url}/hangs", "events": ["begin"]}
        targets = [{"name": "chat", "webhook": f"{url}/refuses"}, {"webhook": f"{url}/fine"}, hanging]
        file.write_text(json.dumps({"targets": targets}))
        one, other = service(notify=str(file)), service(name="other", notify=str(file))
        until(lambda: len(running(consul)) == 2)
        with Nodes(store, consul, HOSTS):
            _begin(store, consul)
            until(lambda: ledger(consul)["state"] == "complete", 30)
            until(lambda: [event["event"]["event"] for event in received].count("end") == 2)
            # It still hangs with the first event.
            assert not any("pager" in text for text in one.messages("notification") + other.messages("notification"))
        kinds = [event["event"]["event"] for event in received]
        # Each target once, although two services run.
        assert [kinds.count(kind) for kind in ("begin", "end")] == [2, 2]
        warnings = until(
            lambda: found if len(found := one.messages("notification") + other.messages("notification")) > 2 else []
        )
        assert all(text.startswith(f"{file} was called with the event ") for text in warnings)
        goes_on = "The rollout continues, but this event is not sent again."
        refuses = f"chat: it answered with status 400. {goes_on} Correct chat in the file."
        hangs = f"pager: it did not answer within 10 s. {goes_on} Check the service behind pager."
        found = [
            (text.split("the event ")[1].split(" of ")[0], text.partition(", and failed: ")[2]) for text in warnings
        ]
        assert found == [("begin", refuses), ("end", refuses), ("begin", hangs)]
        # The one that has the lock gives it back when it is stopped, and the one that waits for it does not wait.
        stopped = time.monotonic()
        assert (one.end(), other.end()) == (0, 0)
        assert time.monotonic() - stopped < 15
        over.set()
        server.shutdown()


@pytest.fixture
def alertmanager(tmp_path: Path) -> Iterator[tuple[str, Callable[[], set[str]]]]:
    """A settings file for a real Alertmanager, and what returns the hosts that are silenced there."""
    with running_alertmanager(tmp_path) as url:
        (tmp_path / "maintenance.yml").write_text(json.dumps({"alertmanager": {"url": url}}))
        yield str(tmp_path / "maintenance.yml"), lambda: {host for host, _silence in active_silences(url)}


@pytest.mark.thorough
def test_a_host_is_silenced_until_it_is_done_or_failed_although_a_service_is_killed(
    service: Start, store: Store, consul: RawKV, alertmanager: tuple[str, Callable[[], set[str]]]
) -> None:
    file, silenced = alertmanager
    one = service(maintenance=file)
    until(lambda: running(consul))
    _begin(store, consul)
    until(lambda: silenced() == {"web1"})
    other = service(name="other", maintenance=file)
    until(lambda: "upgrade/planners/other" in running(consul))
    write_report(store, HostReport("web1", "2", "started"))
    one.kill()
    assert silenced() == {"web1"}
    upgrade(store, "web1")
    until(lambda: silenced() == {"web2"})
    assert other.admitted() == ["web2"]
    write_report(store, HostReport("web2", "2", "started"))
    write_report(store, HostReport("web2", "2", "failed", error="no space left"))
    until(lambda: not silenced())
    # A failed host keeps its slot.
    assert open_hosts(consul, HOSTS) == ["web1", "web2"]


@pytest.mark.thorough
def test_a_status_that_follows_silences_hosts_too(
    play: Shipped, store: Store, consul: RawKV, alertmanager: tuple[str, Callable[[], set[str]]]
) -> None:
    file, silenced = alertmanager
    seed(consul, HOSTS)
    make_pass(store, PassRequest("2", ONE))
    followed = play.start("status", follow=True, maintenance=file)
    until(lambda: silenced() == {"web1"})
    upgrade(store, "web1")
    until(lambda: not silenced())
    operator.abort(store, operator.Command())
    shown, _none = followed.communicate(timeout=90)
    assert followed.returncode == 0, shown


@pytest.mark.parametrize(
    ("settings", "why"),
    quick(
        2,
        [
            ({"pgae": "x"}, "unknown key pgae; did you mean 'page'?"),
            ({"consul": {"token": "secret"}}, "unknown key consul.token"),
            ({"consul": {"port": "many"}}, "consul: argument 'port' is of type"),
            ({"token_file": "/nowhere"}, "token_file: /nowhere can't be read"),
            ({"fleet": ["web1"]}, "fleet does not map hosts to their roles"),
            ({"fleet": "/nowhere"}, "fleet: /nowhere: it does not exist"),
            ({"notify": "/nowhere"}, "notify: /nowhere: it does not exist"),
            ({"name": "a/b"}, "name: "),
            ({"page": 5}, "page is not a text"),
        ],
    ),
)
def test_bad_settings_are_one_sentence_and_exit_code_78(service: Start, settings: dict[str, Any], why: str) -> None:
    one = service(**settings)
    assert one.process.wait(90) == 78
    (line,) = one.log.read_text().splitlines()
    assert why in line
    assert line.endswith("Correct it, then start the service again.")
    assert "secret" not in line


@pytest.mark.thorough
def test_a_token_that_others_may_read_is_refused(service: Start, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    token.chmod(0o644)
    one = service(token_file=str(token))
    assert one.process.wait(90) == 78
    assert f"run chmod 0600 {token}" in one.log.read_text()


@pytest.mark.thorough
def test_a_token_of_its_kind_is_enough_and_no_more(service: Start, tmp_path: Path) -> None:
    with guarded_agent() as agent:
        store = Store(Settings(port=agent.http_port, token=MASTER))
        own = grant(store, TokenKind("planner")).secret
        (tmp_path / "token").write_text(own)
        (tmp_path / "token").chmod(0o600)
        _begin(store, agent.kv)
        page = tmp_path / "page"
        page.mkdir()
        one = service(port=agent.http_port, token_file=str(tmp_path / "token"), page=str(page))
        for host, following in itertools.pairwise(HOSTS):
            # A node can write its record only. Passes publish what it reports.
            node = grant(store, TokenKind("node", host)).secret
            upgrade(Store(Settings(port=agent.http_port, token=node)), host)
            until(lambda following=following: following in one.admitted())
        upgrade(store, "web6")
        until(lambda: ledger(agent.kv)["state"] == "complete")
        assert running(agent.kv) == ["upgrade/planners/one"]
        assert one.messages("denied") == []
        until(lambda: '"complete"' in (page / "state.json").read_text())
        # The page ends with the last change that the service makes to it.
        assert one.end() == 0
        files = {file: file.read_text() for file in page.rglob("*") if file.is_file()}
        assert {file.name for file in files} >= {"index.html", "state.json"}
        assert [str(file) for file, text in files.items() if own in text or MASTER in text] == []
        assert own not in one.log.read_text()
        client = Store(Settings(port=agent.http_port, token=own)).client
        for key in (
            "current_version",
            "upgrade/hold/global",
            "upgrade/approval/canary",
            "upgrade/job_records/web1",
        ):
            with pytest.raises(UpgradeError) as refused:
                client.write([put(key, "3")])
            assert refused.value.code == "denied", key
