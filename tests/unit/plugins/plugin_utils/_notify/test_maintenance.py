# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Silences in a real Alertmanager: they are there while hosts are being upgraded, whatever dies in between."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from alertmanager import active_silences, running_alertmanager
from ansible.parsing.dataloader import DataLoader
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.errors import Unreachable
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import POST_STARTED, UPGRADED, HostRecord
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.ledger import ABORTED, COMPLETE, PAUSED, Ledger
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.fleet_info import FleetView
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.follow import ProgressUpdate, progress_update
from ansible_collections.convoy.upgrade.plugins.plugin_utils._notify import maintenance as tested
from ansible_collections.convoy.upgrade.plugins.plugin_utils._notify.alertmanager import Alertmanager
from ansible_collections.convoy.upgrade.plugins.plugin_utils._notify.maintenance import Maintenance, read_maintenance
from ansible_collections.convoy.upgrade.plugins.plugin_utils._notify.silences import MaintenanceError, Silence
from fleets import NEW, OLD, UNLIMITED, Fleet, fleet


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an Alertmanager of this test."""
    with running_alertmanager(tmp_path_factory.mktemp("alertmanager")) as url:
        yield url


def wait_until(condition: Callable[[], Any], seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.fixture
def place(address: str, request: pytest.FixtureRequest, tmp_path: Path) -> Alertmanager:
    """That Alertmanager, in which each test has silences of its own."""
    return written(tmp_path, {"alertmanager": {"url": address, "name": request.node.name, "lasts": "10m"}})


def written(folder: Path, settings: object) -> Alertmanager:
    """Return the Alertmanager of a settings file that is written here."""
    (folder / "m.yml").write_text(json.dumps(settings))
    (found,) = read_maintenance(DataLoader(), str(folder / "m.yml"))
    assert isinstance(found, Alertmanager)
    return found


def elsewhere(place: Alertmanager, **changes: Any) -> Alertmanager:
    """Return it with another address."""
    return replace(place, address=replace(place.address, **changes))


def silenced(place: Alertmanager) -> dict[str, dict[str, Any]]:
    """Return host -> its active silence, as Alertmanager itself returns it."""
    active = active_silences(place.address.url, place.author)
    hosts = dict(active)
    assert len(hosts) == len(active)
    return hosts


def read(site: Fleet) -> ProgressUpdate:
    site.ledger = Ledger(3, NEW, OLD, instructions=UNLIMITED)
    return progress_update(FleetView(site.snapshot(), site.plan(UNLIMITED)))


def test_a_host_is_silenced_from_its_admission_until_it_is_done_or_failed(place: Alertmanager) -> None:
    site = fleet(compute=4).opened("compute1", "compute2")
    kept = Maintenance(place)
    kept.update(read(site))
    wait_until(lambda: set(silenced(place)) == {"compute1", "compute2"})
    one = silenced(place)["compute1"]
    assert one["comment"] == f"compute1 is being upgraded to {NEW}"
    (matcher,) = one["matchers"]
    assert (matcher["name"], matcher["isRegex"]) == ("instance", True)
    assert [bool(re.fullmatch(matcher["value"], name)) for name in ("compute1", "compute1:9100", "compute10", "xcompute1")] == [
        True, True, False, False,
    ]  # fmt: skip

    site.upgraded("compute1").failed("compute2").opened("compute3")
    kept.update(None)
    kept.update(read(site))
    wait_until(lambda: set(silenced(place)) == {"compute3"})
    assert kept.warning == ""
    site.upgraded("compute3")
    kept.update(read(site))
    kept.close()
    assert silenced(place) == {}


def test_another_process_finds_what_a_killed_one_has_left(place: Alertmanager) -> None:
    site = fleet(compute=3).opened("compute1", "compute2")
    killed = Maintenance(place)
    killed.update(read(site))
    wait_until(lambda: len(silenced(place)) == 2)
    before = silenced(place)["compute2"]["id"]
    # It makes no more changes. Meanwhile, a host is done.
    other = Maintenance(place)
    site.upgraded("compute1")
    other.update(read(site))
    wait_until(lambda: set(silenced(place)) == {"compute2"})
    assert silenced(place)["compute2"]["id"] == before
    other.close()
    # It is still being upgraded, so its silence ends by itself.
    assert set(silenced(place)) == {"compute2"}
    killed.close()


def test_silences_end_by_themselves_and_are_renewed_before(
    place: Alertmanager, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = replace(place, lasts=4)
    site = fleet(compute=1).opened("compute1")
    kept = Maintenance(short)
    kept.update(read(site))
    wait_until(lambda: silenced(place))
    first = silenced(place)["compute1"]
    time.sleep(5)
    renewed = silenced(place)["compute1"]
    assert renewed["id"] == first["id"]
    assert renewed["endsAt"] > first["endsAt"]
    # A process that is killed renews nothing.
    monkeypatch.setattr(Alertmanager, "begin", lambda *_given: None)
    wait_until(lambda: not silenced(place), 10)
    kept.close()


def test_silences_end_while_consul_can_not_be_read(place: Alertmanager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tested, "_LONGEST_WAIT", 1.0)
    kept = Maintenance(replace(place, lasts=4))
    kept.update(read(fleet(compute=1).opened("compute1")))
    wait_until(lambda: silenced(place))

    def is_over_without_consul() -> bool:
        kept.update(Unreachable("unreachable", "Consul gives no answer."))
        return not silenced(place)

    wait_until(is_over_without_consul)
    wait_until(
        lambda: "Silences are not renewed, because the rollout could not be read from Consul since" in kept.warning
    )
    warning = kept.warning
    # The same sentence, so that a log has it once.
    time.sleep(1.5)
    assert kept.warning == warning
    # Nothing has changed, but Consul is back.
    kept.update(read(fleet(compute=1).opened("compute1")))
    wait_until(lambda: silenced(place))
    wait_until(lambda: kept.warning == "")
    kept.close()


def test_silences_of_other_people_fleets_and_unknown_hosts_are_left_alone(place: Alertmanager) -> None:
    other = replace(place, author="ann")
    other.begin("compute1", NEW, time.time() + 600)
    place.begin("elsewhere", NEW, time.time() + 600)
    kept = Maintenance(place)
    kept.update(read(fleet(compute=1)))
    kept.close()
    assert kept.warning == ""
    assert set(silenced(other)) == {"compute1"}
    assert set(silenced(place)) == {"elsewhere"}


def test_an_alertmanager_that_is_away_or_refuses_is_a_warning_and_tried_again(
    place: Alertmanager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tested, "_AGAIN", 0.2)
    calls: list[str] = []
    real = Alertmanager.silences

    def away(self: Alertmanager) -> Any:
        calls.append("")
        if len(calls) < 3:
            raise MaintenanceError("127.0.0.1 can't be reached, or is no Alertmanager")
        return real(self)

    monkeypatch.setattr(Alertmanager, "silences", away)
    kept = Maintenance(place)
    kept.update(read(fleet(compute=1).opened("compute1")))
    wait_until(
        lambda: "Alerts of compute1 may not be silenced as they should: 127.0.0.1 can't be reached" in kept.warning
    )
    wait_until(lambda: silenced(place))
    wait_until(lambda: kept.warning == "")
    kept.close()

    with pytest.raises(MaintenanceError, match="answered with status 404"):
        elsewhere(place, url=f"{place.address.url}/elsewhere").silences()
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        away_url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(MaintenanceError, match="can't be reached"):
            elsewhere(place, url=away_url).silences()


def test_names_with_signs_of_regular_expressions_are_matched_as_they_are(place: Alertmanager) -> None:
    site = fleet(**{"a.b": 1}).opened("a.b1")
    kept = Maintenance(place)
    kept.update(read(site))
    wait_until(lambda: silenced(place))
    (matcher,) = silenced(place)["a.b1"]["matchers"]
    assert re.fullmatch(matcher["value"], "a.b1:9100")
    assert not re.fullmatch(matcher["value"], "axb1")
    kept.close()


GOOD: dict[str, Any] = {"url": "http://am.example.com:9093"}
ICINGA: dict[str, Any] = {"url": "https://i.example.com:5665", "user": "convoy", "password": "s3cret"}


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (None, "it is not a mapping"),
        (
            {"alertmanagers": GOOD},
            "unknown key alertmanagers; did you mean 'alertmanager'? Known are alertmanager, icinga",
        ),
        (
            {"alertmanager": {**GOOD, "label": "x"}},
            "unknown key alertmanager.label. Known are url, matchers, authorization, name, ca_path, lasts",
        ),
        ({"alertmanager": {"url": "am:9093"}}, "alertmanager.url is not a URL"),
        ({"alertmanager": {**GOOD, "matchers": {"instance": ".*"}}}, "alertmanager.matchers: none of them has {host}"),
        ({"alertmanager": {**GOOD, "matchers": {"a-b": "{host}"}}}, "alertmanager.matchers.a-b is not a label"),
        (
            {"alertmanager": {**GOOD, "matchers": {"instance": "{host}("}}},
            "alertmanager.matchers.instance is not a regular expression: ",
        ),
        ({"alertmanager": {**GOOD, "lasts": "soon"}}, "alertmanager.lasts is not a duration"),
        ({"alertmanager": {**GOOD, "lasts": 5}}, "alertmanager.lasts is shorter than 60 s"),
        ({"icinga": {"url": "https://i.example.com:5665"}}, "icinga.user is missing"),
        ({"icinga": {**ICINGA, "password": ""}}, "icinga.password is missing"),
        ({"icinga": {**ICINGA, "host_name": "web"}}, "icinga.host_name has no {host}"),
        ({"icinga": {**ICINGA, "url": "i:5665"}}, "icinga.url is not a URL"),
        ({"icinga": {**ICINGA, "pasword": "x"}}, "unknown key icinga.pasword; did you mean 'password'?"),
        ({"alertmanager": GOOD, "icinga": {**ICINGA, "lasts": 1}}, "icinga.lasts is shorter than 60 s"),
    ],
)
def test_a_mistake_in_the_settings_is_named(tmp_path: Path, settings: object, why: str) -> None:
    with pytest.raises(UpgradeError) as found:
        written(tmp_path, settings)
    assert found.value.code == "bad_maintenance"
    assert found.value.message.startswith(f"maintenance: {tmp_path}/m.yml: {why}")


def test_a_file_that_can_t_be_read_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "m.yml"
    with pytest.raises(
        UpgradeError, match=r"m.yml: it does not exist or is not a file\. Nothing was done: correct the file"
    ):
        read_maintenance(DataLoader(), str(file))
    file.write_text("alertmanager:\n  url: a: b\n")
    with pytest.raises(UpgradeError, match=r"m.yml: it can't be read, line 2 \("):
        read_maintenance(DataLoader(), str(file))


def test_a_token_is_not_shown(place: Alertmanager) -> None:
    one = elsewhere(place, headers={"Authorization": "Bearer s3cret"})
    assert one.silences() == []
    assert "s3cret" not in repr(one)


class _Place:
    """A monitoring system in memory, which refuses some hosts."""

    name, lasts = "place", 60

    def __init__(self, *refused: str) -> None:
        self.refused = refused
        self.found: dict[str, Silence] = {}
        self.calls: list[str] = []

    def silences(self) -> list[Silence]:
        self.calls.append("silences")
        return [*self.found.values()]

    def begin(self, host: str, target: str, until: float, before: Silence | None = None) -> None:
        self._refuse(host)
        self.calls.append(f"{'renew' if before else 'begin'} {host}")
        self.found[host] = Silence(host, host, target, until)

    def end(self, silence: Silence) -> None:
        self._refuse(silence.host)
        self.calls.append(f"end {silence.host}")
        del self.found[silence.host]

    def _refuse(self, host: str) -> None:
        if host in self.refused:
            raise MaintenanceError(f"it refuses {host}")


def test_an_error_of_one_host_leaves_no_other_host_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tested, "_AGAIN", 0.1)
    place = _Place("compute1", "compute3")
    place.found = {host: Silence(host, host, "", 2e9) for host in ("compute3", "compute4")}
    kept = Maintenance(place)
    kept.update(read(fleet(compute=4).opened("compute1", "compute2")))
    wait_until(lambda: "it refuses compute1" in kept.warning)
    assert [*place.found] == ["compute3", "compute2"]
    kept.close()


@pytest.mark.parametrize(
    "error",
    [
        Unreachable("unreachable", "Consul gives no answer."),
        UpgradeError("denied", "ACL not found"),
        KeyError("x"),
        None,
    ],
)
def test_without_consul_silences_are_only_renewed(error: Exception | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tested, "_LONGEST_WAIT", 0.1)
    if error is None:
        # A connection that loses everything is no error for a long time.
        monkeypatch.setattr(tested, "_FRESH", 1.0)
    place = _Place()
    kept = Maintenance(place)
    kept.update(read(fleet(compute=4).opened("compute1", "compute2")))
    wait_until(lambda: [*place.found] == ["compute1", "compute2"])
    kept.update(error)
    wait_until(lambda: kept._has_only_renewed)
    # Another process, which can read Consul, has ended one silence, begun another one, and one has to be renewed.
    time.sleep(0.2)
    place.found = {
        "compute1": Silence("compute1", "compute1", "", time.time()),
        "compute3": Silence("compute3", "compute3", "", 2e9),
    }
    place.calls.clear()
    wait_until(lambda: place.calls.count("silences") > 2)
    assert {*place.calls} == {"silences", "renew compute1"}
    kept.update(read(fleet(compute=4).opened("compute1", "compute2")))
    wait_until(lambda: [*place.found] == ["compute1", "compute2"])
    kept.close()


def test_a_read_from_before_a_suspension_neither_begins_nor_ends_a_silence() -> None:
    place = _Place()
    place.found = {"compute2": Silence("compute2", "compute2", "", 2e9)}
    kept = Maintenance(place)
    found = read(fleet(compute=2).opened("compute1"))
    for since in ((time.time() - 60, time.monotonic()), (time.time(), time.monotonic() - 60)):
        place.calls.clear()
        kept.update(replace(found, read_at=since))
        wait_until(lambda: place.calls and kept._has_only_renewed)
        assert place.calls == ["silences"]
    kept.update(read(fleet(compute=2).opened("compute1")))
    wait_until(lambda: [*place.found] == ["compute1"])
    kept.close()


class _SlowPlace(_Place):
    """One that takes longer to list silences, and to begin one, than a read is fresh."""

    def silences(self) -> list[Silence]:
        time.sleep(1.1)
        return super().silences()

    def begin(self, host: str, target: str, until: float, before: Silence | None = None) -> None:
        time.sleep(1.1)
        super().begin(host, target, until, before)


def test_a_slow_monitoring_system_is_warned_of_and_gets_all_silences_by_reads_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tested, "_FRESH", 1.0)
    site, place = fleet(compute=4).opened("compute1", "compute2"), _SlowPlace()
    place.found = {host: Silence(host, host, "", 2e9) for host in ("compute3", "compute4")}
    reads: list[ProgressUpdate] = []

    def read_again() -> ProgressUpdate:
        reads.append(read(site))
        return reads[-1]

    kept = Maintenance(place, read_again)
    first = read(site)
    # It has ended since, and another one has begun.
    site.upgraded("compute2").opened("compute4")
    kept.update(first)
    wait_until(lambda: "takes 1 s or longer to change the silences" in kept.warning)
    wait_until(lambda: {*place.found} == {"compute1", "compute4"})
    assert "begin compute2" not in place.calls and "end compute4" not in place.calls
    assert reads and kept.warning.endswith("so alerts may come before they begin. Look at its load.")
    kept.close()


def test_a_fleet_that_cannot_be_read_again_is_said_and_silences_are_only_renewed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tested, "_FRESH", 1.0)
    place = _SlowPlace()
    place.found = {
        "compute1": Silence("compute1", "compute1", "", time.time() + 5),
        "compute3": Silence("compute3", "compute3", "", 2e9),
    }

    def read_again() -> ProgressUpdate:
        raise UpgradeError("denied", "ACL not found.")

    kept = Maintenance(place, read_again)
    kept.update(read(fleet(compute=3).opened("compute1", "compute2")))
    wait_until(lambda: kept.warning)
    assert kept.warning == (
        "Silences are only renewed, because the fleet could not be read from Consul again: ACL not found. It is tried again."
    )
    assert {*place.calls} == {"silences", "renew compute1"}
    kept.close()


def test_a_host_that_only_may_start_other_work_is_not_silenced() -> None:
    place = _Place()
    kept = Maintenance(place)
    found = read(fleet(compute=2).opened("compute1", "compute2"))
    hosts = {**found.hosts, "compute2": replace(found.hosts["compute2"], busy=True, started=False)}
    kept.update(replace(found, hosts=hosts))
    wait_until(lambda: place.found)
    kept.close()
    assert [*place.found] == ["compute1"]


def silenced_by(site: Fleet, **ledger: Any) -> set[str]:
    """Return the hosts that are silenced in a rollout."""
    place = _Place()
    kept = Maintenance(place)
    site.ledger = replace(site.ledger or Ledger(3, NEW, OLD, instructions=UNLIMITED), **ledger)
    kept.update(progress_update(FleetView(site.snapshot(), site.plan(UNLIMITED))))
    wait_until(lambda: "silences" in place.calls)
    kept.close()
    return {*place.found}


def test_a_host_that_no_planner_admitted_is_not_silenced() -> None:
    site = fleet(compute=4).opened("compute1").started("compute1", "compute2")
    assert silenced_by(site) == {"compute1"}
    site.admitted("compute3").started("compute3")
    assert silenced_by(site) == {"compute1", "compute3"}


@pytest.mark.parametrize(("state", "command"), [(COMPLETE, {}), (ABORTED, {}), (PAUSED, {"was": COMPLETE})])
def test_after_a_rollout_only_hosts_that_were_admitted_in_it_are_silenced(state: str, command: dict[str, str]) -> None:
    site = fleet(compute=3).gated("True", "global").started("compute2").upgraded("compute1")
    assert silenced_by(site, state=state, command=command) == set()
    site.opened("compute3")
    site.gated_at = 9_000
    assert silenced_by(site, state=state, command=command) == {"compute3"}


def test_post_upgrade_tasks_silence_only_hosts_of_roles_that_have_some() -> None:
    site = fleet(compute=1, web=1).upgraded("compute1", "web1")
    for host in ("compute1", "web1"):
        site.records[host] = HostRecord(NEW, UPGRADED, reported=NEW, post=POST_STARTED)
    assert silenced_by(site, state=COMPLETE, post_upgrade=("compute",)) == {"compute1"}
    assert silenced_by(site, state=COMPLETE, post_upgrade=()) == set()


def test_a_host_that_is_lost_in_its_post_upgrade_tasks_is_not_silenced_any_more() -> None:
    site = fleet(compute=2).upgraded("compute1", "compute2")
    for host, at in (("compute1", 9_990), ("compute2", 1)):
        site.records[host] = HostRecord(NEW, UPGRADED, reported=NEW, post=POST_STARTED, times={"open": at})
    assert silenced_by(site, state=COMPLETE, post_upgrade=("compute",)) == {"compute1"}
