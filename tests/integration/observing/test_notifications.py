# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A hook gets notifications of a rollout, by real runs of the playbooks and to a real server."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.processes import start_ticks
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.errors import Conflict, Unreachable
from ansible_collections.convoy.upgrade.plugins.module_utils._host.gate_question import ask_gate
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.notifications import SentNotifications
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.notifications import SentKey, read_sent
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import control
from ansible_collections.convoy.upgrade.plugins.module_utils._state.legacy_keys import LegacyKeys
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.plugin_utils._notify.messages import StartNotifier
from ansible_collections.convoy.upgrade.plugins.plugin_utils._notify.notifier import Notifier
from devkit.child import stop
from devkit.kv import RawKV
from integration.support.fleets.fleet import ledger, names, seed
from integration.support.runs.hook import Listener, example, listening
from integration.support.runs.playbook import Runner, wait_until
from integration.support.runs.push import WATCHED
from integration.support.runs.shipped import Shipped, inventory

FLEET = names(controller=1, compute=2)
ROLES = {"controller": {"plane": "controlplane"}, "compute": {"plane": "dataplane"}}
MORE: dict[str, Any] = {"inventory": inventory(FLEET), "upgrade_roles": ROLES}
STAGED = {
    "rolling_rules": {"global": "unlimited"},
    "stages": [
        {"name": "canary", "hosts": ["controller1", "compute1"], "approve": True},
        {"name": "rest", "hosts": "100%"},
    ],
}


@pytest.fixture
def chat() -> Iterator[Listener]:
    with listening() as listener:
        yield listener


def upgraded(store: Store, *hosts: str) -> None:
    for host in hosts:
        write_report(store, HostReport(host, "2", "started"))
        write_report(store, HostReport(host, "2", "upgraded"))


def one_line(text: str) -> str:
    return " ".join(text.split())


def hook(folder: Path, task: dict[str, Any]) -> str:
    """Write a hook of one task."""
    file = folder / "hook.yml"
    file.write_text(json.dumps([task]))
    return str(file)


def ended(process: subprocess.Popen[str]) -> None:
    """Wait for the end of a run, which has to be a good one."""
    stdout, _nothing = process.communicate(timeout=90)
    assert process.returncode == 0, stdout


@pytest.mark.thorough
def test_each_event_is_sent_once_for_hosts_that_upgrade_themselves(
    play: Shipped, store: Store, consul: RawKV, chat: Listener, request: pytest.FixtureRequest
) -> None:
    seed(consul, FLEET)
    example(play.folder)
    # As it is found from where the command is given.
    here = {"PWD": str(play.folder)}
    given = {**MORE, "version": "2", "upgrade_notify": "notify.yml", "chat_webhook": chat.url}
    runs = [play.start("upgrade", environ=here, instructions=STAGED, **given)]
    request.addfinalizer(lambda: [stop(process, signal.SIGKILL) for process in runs])
    begun = chat.wait_for("begin")
    assert (begun["text"], begun["version"]) == (
        f"The rollout to 2 from 1 was begun by {begun['by']}, for 3 hosts.",
        "2",
    )
    assert chat.wait_for("stage")["stage"] == "canary"
    runs.append(play.start("upgrade", environ=here, **given))

    write_report(store, HostReport("compute1", "2", "started"))
    write_report(store, HostReport("compute1", "2", "failed", error="{{ 1 + 1 }} no disk {% if"))
    failed = chat.wait_for("failure")
    assert [(one["host"], one["state"]) for one in failed["failures"]] == [("compute1", "failed")]
    assert "{{ 1 + 1 }} no disk {% if" in failed["failures"][0]["error"]
    assert "{{ 1 + 1 }} no disk" in failed["text"]
    assert failed["counts"]["compute"] == {
        **dict.fromkeys(("upgraded", "lost", "upgrading", "held"), 0), "failed": 1, "pending": 1
    }  # fmt: skip

    command = control.Command("logins fail", "ann", FLEET)
    control.pause(store, command)
    paused = chat.wait_for("pause")
    assert (paused["by"], paused["reason"], paused["cause"]) == ("ann", "logins fail", "command")
    assert paused["text"] == "The rollout to 2 was paused by ann: logins fail."
    control.resume(store, control.Command("", "ann", FLEET))
    assert chat.wait_for("resume")["text"] == "The rollout to 2 was resumed by ann."
    control.retry(store, command, ["compute1"])
    # In this order, because the runs would end if only hosts that were not admitted were on their way.
    upgraded(store, "compute1", "controller1")
    needed = chat.wait_for("approval_needed")
    assert (needed["stage"], needed["upgraded"]) == ("canary", 2)
    assert "convoy.upgrade.approve -e stage=canary" in needed["next"]
    control.approve(store, command)
    assert chat.wait_for("approved")["by"] == "ann"
    wait_until(lambda: ask_gate(store, {"compute2": "compute"}, default=False)["compute2"].value, 90, "its admission")
    upgraded(store, "compute2")
    end = chat.wait_for("end")
    assert (end["outcome"], end["text"]) == ("complete", "The rollout to 2 is complete; 3 of 3 hosts upgraded.")
    for process in runs:
        ended(process)
    # The second stage begins in the write after the approval.
    order = ["begin", "stage", "failure", "pause", "resume", "approval_needed", "approved", "stage", "end"]
    assert chat.names == order
    assert [body["text"] for body in chat.posted] == [f"{one['text']} {one['next']}" for one in chat.events]
    assert len({(one["event"], one["epoch"], one["at"]) for one in chat.events}) == len(order)

    ended(play.start("upgrade", environ=here, **given))
    assert chat.names == order


@pytest.mark.thorough
def test_a_command_is_reported_by_the_playbook_that_gives_it_and_by_no_later_one(
    play: Shipped, store: Store, consul: RawKV, chat: Listener
) -> None:
    seed(consul, FLEET)
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": 1}}, fleet=FLEET))
    given = {**MORE, "upgrade_notify": str(example(play.folder)), "chat_webhook": chat.url}
    shown = play("pause", "--check", reason="logins fail", **given)
    assert shown.returncode == 0, shown.stdout
    assert f"{given['upgrade_notify']} would be called with the events pause, but is not called" in one_line(
        shown.stdout
    )
    assert (chat.posted, consul.get("upgrade/notified"), ledger(consul)["state"]) == ([], None, "running")

    paused = play("pause", reason="logins fail", by="ann", **given)
    assert paused.returncode == 0, paused.stdout
    # What happened before there was a hook is not sent.
    assert chat.names == ["pause"]
    control.resume(store, control.Command("", "bob", FLEET))
    aborted = play("abort", reason="enough", by="ann", **given)
    assert aborted.returncode == 0, aborted.stdout
    # What happened while no notifier was at work comes first.
    assert [one["text"] for one in chat.events[1:]] == [
        "The rollout to 2 was resumed by bob.",
        "The rollout to 2 was aborted by ann: enough; 0 of 3 hosts upgraded.",
    ]
    assert json.loads(consul.get("upgrade/notified") or b"")["epoch"] == ledger(consul)["epoch"]


@pytest.mark.thorough
@pytest.mark.one_release
def test_the_targets_of_a_settings_file_get_the_event_and_a_bad_one_is_refused(
    play: Shipped, store: Store, consul: RawKV, chat: Listener
) -> None:
    seed(consul, FLEET)
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": 1}}, fleet=FLEET))
    before = consul.tree()
    file = play.folder / "settings.yml"
    file.write_text(json.dumps({"targets": [{"webhook": chat.url, "events": ["paused"]}]}))
    refused = play("pause", upgrade_notify=str(file), **MORE)
    assert refused.returncode == 2, refused.stdout
    assert f"upgrade_notify: {file}: targets[0].events: 'paused' is not one of begin, stage" in one_line(refused.stdout)
    assert consul.tree() == before

    file.write_text(
        json.dumps({"targets": [{"webhook": chat.url, "secret": "s"}, {"url": "json://127.0.0.1:1/?rto=1"}]})
    )
    ran = play("pause", upgrade_notify=str(file), reason="logins fail", **MORE)
    assert (ran.returncode, ledger(consul)["state"]) == (0, "paused"), ran.stdout
    assert chat.wait_for("pause")["reason"] == "logins fail"
    assert "was called with the event pause" in one_line(ran.stdout)
    assert "and failed: JSON: " in one_line(ran.stdout)


@pytest.mark.thorough
@pytest.mark.one_release
def test_a_hook_that_fails_or_hangs_is_a_warning_and_one_that_is_not_there_is_refused(
    play: Shipped, store: Store, consul: RawKV
) -> None:
    seed(consul, FLEET)
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": 1}}, fleet=FLEET))
    before = consul.tree()
    for file, why in (
        ("gone.yml", "it does not exist or is not a file"),
        ("text.yml", "it is neither a list of tasks nor settings with targets"),
    ):
        (play.folder / "text.yml").write_text("tasks\n")
        refused = play("pause", upgrade_notify=str(play.folder / file), **MORE)
        assert refused.returncode == 2, refused.stdout
        message = f"upgrade_notify: {play.folder / file}: {why}. Nothing was done: give a file with tasks or targets, or leave upgrade_notify"
        assert message in one_line(refused.stdout)
    assert consul.tree() == before

    file = hook(play.folder, {"ansible.builtin.fail": {"msg": "no bot {{ upgrade_event.event }}"}})
    failed = play("pause", upgrade_notify=file, **MORE)
    assert (failed.returncode, ledger(consul)["state"]) == (0, "paused"), failed.stdout
    assert re.search(
        rf"\[WARNING\]: {file} was called with the event pause of \S+Z, and failed: no bot pause. The rollout continues, but "
        "this event is not sent again. Fix the file, or what its tasks use.",
        one_line(failed.stdout),
    )
    mark = play.folder / "hangs"
    file = hook(play.folder, {"ansible.builtin.shell": f"echo $$ > {mark}; exec sleep 3600"})
    late = play("resume", upgrade_notify=file, upgrade_notify_timeout=15, **MORE)
    assert (late.returncode, ledger(consul)["state"]) == (0, "running"), late.stdout
    assert "and failed: it took longer than 15 s and was stopped. The rollout" in one_line(late.stdout)
    assert "again. Check what its tasks wait for, or set upgrade_notify_timeout higher." in one_line(late.stdout)
    assert start_ticks(int(mark.read_text())) is None


@pytest.mark.thorough
@pytest.mark.one_release
def test_what_a_killed_run_has_not_reported_is_reported_by_the_next(
    play: Shipped, store: Store, consul: RawKV, chat: Listener
) -> None:
    seed(consul, FLEET)
    mark = play.folder / "begun"
    slow = hook(play.folder, {"ansible.builtin.shell": f"echo $$ > {mark}; exec sleep 3600"})
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": 1}}, fleet=FLEET))
    process = play.start("pause", reason="logins fail", by="ann", upgrade_notify=slow, **MORE)
    wait_until(lambda: mark.exists() and mark.read_text(), 60, "the call of the hook")
    at_work = json.loads(consul.get("upgrade/notified") or b"")
    os.kill(at_work["pid"], signal.SIGKILL)
    stop(process, signal.SIGKILL)
    # No one is left who would end it.
    os.kill(int(mark.read_text()), signal.SIGKILL)
    given = {**MORE, "upgrade_notify": str(example(play.folder)), "chat_webhook": chat.url}
    resumed = play("resume", by="bob", **given)
    assert resumed.returncode == 0, resumed.stdout
    assert [(one["event"], one["by"]) for one in chat.events] == [("pause", "ann"), ("resume", "bob")]


@pytest.mark.thorough
def test_a_playbook_without_the_watch_fails_with_what_it_lacks(run: Runner, tmp_path: Path, consul: RawKV) -> None:
    given = {
        "hook": str(example(tmp_path)),
        "hook_timeout": 5,
        "fleet": FLEET,
        "retry_failed": True,
        "expects": ["end"],
        "kv_prefix": "elsewhere",
    }
    refused = run([{"convoy.upgrade.consul_upgrade_notify": given}])[0]
    assert (refused["failed"], refused["failure"]["code"]) == (True, "no_watch")
    assert "set callback_plugins (or ANSIBLE_CALLBACK_PLUGINS) to the folder" in refused["msg"]
    watched = run([{"convoy.upgrade.consul_upgrade_notify": given}], check=True, environ=WATCHED)[0]
    assert (watched["failed"], watched["notifications"]) == (False, [])
    assert consul.tree() == {}


def _hook(call: Callable[[Mapping[str, Any]], None]) -> Any:
    """Return what stands in the place of a hook, which would be another run of Ansible."""
    return SimpleNamespace(file="hook.yml", call=call)


def test_a_notifier_that_has_lost_its_lock_sends_nothing_until_it_has_it_again(store: Store, consul: RawKV) -> None:
    seed(consul, names(web=2))
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": "unlimited"}}, limit=["web1"]))
    events: list[str] = []
    hook = _hook(lambda event: events.append(event["event"]))
    notifier = Notifier(StartNotifier(store.settings, hook, {}, retry_failed=False))
    wait_until(lambda: notifier._has_lock)
    # As after an outage in which its session has ended: another run has the lock, and sends the event.
    store.client.close_session(notifier._sent_key._session)
    other = SentKey(store)
    taken: list[SentNotifications] = []
    try:
        wait_until(lambda: taken.extend(filter(None, [other.take(SentNotifications())])) or taken)
        control.pause(store, control.Command("lunch"))
        wait_until(lambda: not notifier._has_lock)
        assert events == []
        assert other.note(replace(taken[0], epoch=ledger(consul)["epoch"]))
        other.close()
        control.resume(store, control.Command())
    finally:
        notifier.finish()
    assert events == ["resume"]


def test_a_note_that_arrives_late_does_not_undo_a_later_one(
    store: Store, consul: RawKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = SentKey(store)
    try:
        taken = key.take(SentNotifications())
        assert taken is not None
        write, late = store.client.write, []
        monkeypatch.setattr(store.client, "write", lambda operations: late.append(operations) or write(operations))
        for epoch in (1, 2):
            assert key.note(replace(taken, epoch=epoch))
        monkeypatch.undo()
        # As a request whose answer was given up, and that was on its way all the same.
        with pytest.raises(Conflict):
            store.client.write(late[0])
        found = read_sent(store)
        assert found is not None and found.epoch == 2
        # As after a lost answer: the index is not the one that this run knows.
        consul.put("upgrade/notified", json.dumps({**found.plain(), "epoch": 3}))
        assert key.note(replace(taken, epoch=4))
        found = read_sent(store)
        assert found is not None and found.epoch == 4
    finally:
        key.close()


def test_a_notifier_warns_once_of_what_keeps_it_from_sending(store: Store, consul: RawKV) -> None:
    seed(consul, names(web=2))
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": "unlimited"}}, limit=["web1"]))
    warnings: list[str] = []
    nothing_is_sent: Any = None
    start = StartNotifier(store.settings, nothing_is_sent, {}, retry_failed=False)
    notifier = Notifier(start, warn=warnings.append)
    kept = consul.get("upgrade/ledger") or b""
    try:
        for broken in ("[", "[]]"):
            consul.put("upgrade/ledger", broken)
            wait_until(lambda: warnings)
        consul.put("upgrade/ledger", kept.decode())
    finally:
        notifier.finish()
    assert len({*warnings}) == len(warnings)
    assert all(one.startswith("No event is sent at present: ") and "upgrade/ledger" in one for one in warnings)


def test_a_notifier_that_fails_gives_its_lock_back(store: Store, consul: RawKV) -> None:
    seed(consul, names(web=2))
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": "unlimited"}}, limit=["web1"]))
    events: list[str] = []

    class Broken:
        file = "hook.yml"

        def call(self, event: Mapping[str, Any]) -> None:
            raise MemoryError(event["event"])

    class Working(Broken):
        def call(self, event: Mapping[str, Any]) -> None:
            events.append(event["event"])

    def start(hook: Any, warnings: list[str]) -> Notifier:
        return Notifier(StartNotifier(store.settings, hook, {}, retry_failed=False), warn=warnings.append)

    warnings: list[str] = []
    broken = start(Broken(), warnings)
    control.pause(store, control.Command("lunch"))
    broken.wait()
    assert warnings == ["The notifier of this run failed and sends no further events: MemoryError('pause')."]
    # Another one, also of the same process, sends what comes next.
    later: list[str] = []
    working = start(Working(), later)
    control.resume(store, control.Command())
    assert working.finish() == ()
    assert "resume" in events
    assert later == []


def test_a_notifier_that_fails_leaves_no_blocking_query(store: Store, consul: RawKV) -> None:
    seed(consul, names(web=2))
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": "unlimited"}}, limit=["web1"]))

    class Broken:
        file = "hook.yml"

        def call(self, event: Mapping[str, Any]) -> None:
            raise MemoryError(event["event"])

    def queries() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if "(_query)" in thread.name}

    before, warnings, hook = queries(), list[str](), Broken()
    given: Any = hook
    broken = Notifier(StartNotifier(store.settings, given, {}, retry_failed=False), warn=warnings.append)
    wait_until(lambda: queries() - before)
    control.pause(store, control.Command("lunch"))
    broken.wait()
    assert warnings
    # Each query ends with its answer.
    keys = store.keys
    for folder in (keys.upgrade, keys.reports, LegacyKeys(keys.prefix).reports, keys.gates):
        consul.put(f"{folder}x", "changed")
    consul.put(keys.current_version, "changed")
    wait_until(lambda: not queries() - before)


@pytest.mark.thorough
def test_what_was_sent_is_stored_before_the_next_event_is_sent_although_consul_did_not_answer(
    store: Store, consul: RawKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed(consul, names(web=2))
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": "unlimited"}}, limit=["web1"]))
    # The name of each event, its epoch, and the epoch up to which events were stored as sent when it came.
    events: list[tuple[str, int, int]] = []

    def called(event: Mapping[str, Any]) -> None:
        events.append((event["event"], event["epoch"], json.loads(consul.get("upgrade/notified") or b"")["epoch"]))

    hook = _hook(called)
    notifier = Notifier(StartNotifier(store.settings, hook, {}, retry_failed=False))
    wait_until(lambda: notifier._has_lock)
    really_note, lost = notifier._sent_key.note, []

    def note(sent: SentNotifications) -> bool:
        if len(lost) < 2:
            lost.append(sent.epoch)
            raise Unreachable("no_answer", "Consul did not answer.")
        return really_note(sent)

    monkeypatch.setattr(notifier._sent_key, "note", note)
    try:
        control.pause(store, control.Command("lunch"))
        control.resume(store, control.Command())
        wait_until(lambda: len(events) == 2)
    finally:
        notifier.finish()
    assert [name for name, _epoch, _stored in events] == ["pause", "resume"]
    assert (len(lost), events[1][2]) == (2, events[0][1]), events


def test_a_notifier_that_slept_before_it_took_the_lock_does_not_send_what_another_has_sent_since(
    store: Store, consul: RawKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed(consul, names(web=2))
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": "unlimited"}}, limit=["web1"]))
    other = SentKey(store)
    taken = other.take(SentNotifications())
    assert taken is not None
    events: list[str] = []
    hook = _hook(lambda event: events.append(event["event"]))
    notifier = Notifier(StartNotifier(store.settings, hook, {}, retry_failed=False))
    really_take, slept = notifier._sent_key.take, []

    def take(sent: SentNotifications) -> SentNotifications | None:
        if not slept:
            slept.append(True)
            control.pause(store, control.Command("lunch"))
            other.note(replace(taken, epoch=ledger(consul)["epoch"]))
            other.close()
        return really_take(sent)

    monkeypatch.setattr(notifier._sent_key, "take", take)
    try:
        wait_until(lambda: notifier._has_lock)
        control.resume(store, control.Command())
    finally:
        notifier.finish()
    assert (slept, events) == ([True], ["resume"])
