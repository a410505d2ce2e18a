# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rollout report, from the history and the records of hosts."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.failures import Failure
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import HostRecord, VersionReport
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.step_trail import StepStart
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout_report.rollout import UNKNOWN_ROLE, rollout_report
from ansible_collections.convoy.upgrade.plugins.plugin_utils._pages.report_page import html_page
from hypothesis import given
from hypothesis import strategies as st

MEMBERS = {"compute1": "compute", "compute2": "compute", "compute3": "compute", "controller1": "controller"}
RULES = {"rolling_rules": {"roles": {"compute": 2}, "fleet": 3}}


def entry(at: int, what: str, **more: Any) -> dict[str, Any]:
    """Return an entry of the history."""
    return {"at": at, "what": what, "epoch": at, "version": "2", "who": "ann@box", **more}


EVENTS = [
    entry(100, "begin", **{"from": "1"}, instructions=RULES, reason="ann asked for 2"),
    entry(110, "open", hosts={}, roles={"controller": {"hosts": 1, "reason": "nothing limits it"}}),
    entry(150, "open", hosts={"compute1": "slot", "compute2": "slot"}),
    entry(180, "retry", hosts={"compute2": "it was: failed"}, by="bob", reason="disk"),
    entry(190, "open", hosts={"compute2": "slot"}),
]
RECORDS = {
    "controller1": HostRecord("2", "upgraded", times={"started": 115, "upgraded": 140}),
    "compute1": HostRecord("2", "failed", "nova", "stop", 1, "no space", {"started": 160, "failed": 170}),
    "compute2": HostRecord("2", "started", "nova", "upgrade", 2, times={"started": 195, "failed": 175}),
    "compute3": HostRecord("1", "upgraded", times={"started": 10, "upgraded": 20}),
}


def report(**more: Any) -> dict[str, Any]:
    """Return the report on the running rollout at time 250."""
    return rollout_report(EVENTS, MEMBERS, RECORDS, {}, 250, **{"is_current": True, **more})


def test_each_host_goes_through_its_phases() -> None:
    hosts = {one["host"]: one for one in report()["hosts"]}

    assert {name: [phase[:3] for phase in one["phases"]] for name, one in hosts.items()} == {
        "controller1": [["waiting", 100, 110], ["admitted", 110, 115], ["upgrading", 115, 140], ["upgraded", 140, 250]],
        "compute1": [["waiting", 100, 150], ["admitted", 150, 160], ["upgrading", 160, 170], ["failed", 170, 250]],
        "compute2": [
            ["waiting", 100, 150], ["admitted", 150, 175], ["failed", 175, 180], ["waiting", 180, 190],
            ["admitted", 190, 195], ["upgrading", 195, 250],
        ],
        "compute3": [["waiting", 100, 250]],
    }  # fmt: skip
    assert (hosts["compute1"]["service"], hosts["compute1"]["step"], hosts["compute1"]["error"]) == (
        "nova",
        "stop",
        "no space",
    )


def test_the_gate_of_a_role_admits_only_those_of_its_hosts_that_had_not_upgraded_before() -> None:
    by_gate = {"compute": {"hosts": 1, "reason": "nothing limits it"}}
    events = [EVENTS[0], entry(150, "open", hosts={"compute1": "slot"}, roles=by_gate)]
    records = {"compute2": HostRecord("2", "upgraded", times={"started": 20, "upgraded": 90})}
    found = rollout_report(events, MEMBERS, records, {}, 250, is_current=True)
    hosts = {one["host"]: (one["phase"], one["admitted"]) for one in found["hosts"] if one["role"] == "compute"}
    assert hosts == {"compute1": ("admitted", [150]), "compute2": ("upgraded", []), "compute3": ("admitted", [150])}

    by_gate["compute"]["hosts"] = 0
    (compute3,) = (
        one
        for one in rollout_report(events, MEMBERS, records, {}, 250, is_current=True)["hosts"]
        if one["host"] == "compute3"
    )
    assert compute3["phase"] == "waiting"


@pytest.mark.parametrize("ended", [99, 100, 104])
def test_a_host_that_had_ended_before_the_rollout_began_again_has_not_only_been_admitted(ended: int) -> None:
    # The write of its end was under way when an operator began the rollout again, or when a planner opened its gate again after that.
    events = [EVENTS[0], entry(105 if ended > 100 else 100, "open", hosts={"compute3": "slot"})]
    records = {"compute3": HostRecord("2", "upgraded", times={"started": 98, "upgraded": ended})}
    found = rollout_report(events, MEMBERS, records, {}, 250, is_current=True)
    (host,) = (one for one in found["hosts"] if one["host"] == "compute3")
    assert host["phase"] == "upgraded"


def test_what_is_reported_of_all_of_them() -> None:
    found = report()

    assert (found["version"], found["previous_version"], found["state"], found["begun"], found["end"]) == (
        "2", "1", "running", 100, 250,
    )  # fmt: skip
    assert found["concurrency"]["role controller"] == [[110, 1], [115, 1], [140, 0]]
    assert found["concurrency"]["role compute"][-1] == [250, 0]
    assert max(down for _at, down in found["concurrency"]["the fleet"]) == 2
    assert found["caps"] == {"role compute": 2, "the fleet": 3}
    assert found["durations"]["controller"] == {"hosts": 1, "median": 30, "longest": 30}
    assert found["durations"]["compute"] == {"hosts": 0, "median": 0, "longest": 0}
    assert found["commands"][3] == {"at": 180, "epoch": 180, "who": "bob", "what": "retry", "text": "compute2: disk"}
    assert found["rules"] == RULES


def test_steps_and_how_long_they_took() -> None:
    records = {
        "controller1": HostRecord("2", "upgraded", times={"started": 115, "upgraded": 140}, trail=(
            StepStart(115, "db", "stop"), StepStart(118, "db", "upgrade"), StepStart(118, "web", "upgrade"), StepStart(140),
        )),
        # It failed twice. Only the last time is stored.
        "compute1": HostRecord("2", "failed", "nova", "start", 2, "no", {"started": 165, "failed": 190}, trail=(
            StepStart(160, "nova", "stop"), StepStart(163), StepStart(165, "nova", "start"), StepStart(190),
        )),
        "compute2": HostRecord("2", "started", "nova", "stop", 1, None, {"started": 200}, trail=(StepStart(200, "nova", "stop"),)),
    }  # fmt: skip
    found = rollout_report(EVENTS, MEMBERS, records, {}, 250, is_current=True)

    hosts = {one["host"]: one["phases"] for one in found["hosts"]}
    assert hosts["controller1"] == [
        ["waiting", 100, 110, "", ""], ["admitted", 110, 115, "", ""], ["upgrading", 115, 118, "db", "stop"],
        ["upgrading", 118, 118, "db", "upgrade"], ["upgrading", 118, 140, "web", "upgrade"], ["upgraded", 140, 250, "", ""],
    ]  # fmt: skip
    assert hosts["compute1"][2:] == [
        ["upgrading", 160, 163, "nova", "stop"], ["admitted", 163, 165, "", ""], ["upgrading", 165, 190, "nova", "start"],
        ["failed", 190, 250, "", ""],
    ]  # fmt: skip
    assert hosts["compute2"][-1] == ["upgrading", 200, 250, "nova", "stop"]
    rows = [tuple(one.values()) for one in found["steps"]]
    assert rows == [
        ("compute", "nova", "stop", 1, 3, 3, 0, 1),
        ("compute", "nova", "start", 0, 0, 0, 1, 0),
        ("controller", "db", "stop", 1, 3, 3, 0, 0),
        ("controller", "db", "upgrade", 1, 0, 0, 0, 0),
        ("controller", "web", "upgrade", 1, 22, 22, 0, 0),
    ]
    assert "web upgrade, from 1970-01-01 00:01:58 UTC, 22s" in html_page(found)


def test_a_host_that_recovered_has_failed_all_the_same() -> None:
    failures = (Failure(175, 1, "nova", "stop", "no space"), Failure(200, 2, "nova", "start", "no <port>"))
    healed = HostRecord(
        "2", "upgraded", attempt=3, times={"started": 205, "failed": 200, "upgraded": 205}, failures=failures
    )
    # Records of releases that did not store failures.
    older = HostRecord("2", "upgraded", attempt=2, times={"started": 170, "failed": 165, "upgraded": 180})
    events = [*EVENTS, entry(205, "open", hosts={"compute2": "slot"})]
    found = rollout_report(events, MEMBERS, {"compute2": healed, "compute1": older}, {}, 250, is_current=True)

    hosts = {one["host"]: one for one in found["hosts"]}
    one = hosts["compute2"]
    assert [(each["at"], each["step"], each["error"]) for each in one["failures"]] == [
        (175, "stop", "no space"),
        (200, "start", "no <port>"),
    ]
    assert one["retries"] == [{"at": 180, "by": "bob", "reason": "it was: failed"}]
    assert (one["admitted"], one["began"], one["ended"]) == ([150, 190, 205], 205, 205)
    assert [phase[:2] for phase in one["phases"] if phase[0] == "failed"] == [["failed", 175], ["failed", 200]]
    assert [(each["at"], each["error"]) for each in hosts["compute1"]["failures"]] == [(165, "")]
    shown = html_page(found)
    for tile in (
        "<b>2 of 4</b>hosts upgraded",
        "<b>0</b>failed now",
        "<b>3</b>failures in all",
        "<b>1</b>retry in all",
    ):
        assert tile in shown
    assert '<td>nova start</td><td class="long">no &lt;port&gt;</td>' in shown
    assert '<td>retried</td><td>by bob</td><td class="long">it was: failed</td>' in shown


def test_the_page_says_admitted_and_complete_where_the_history_has_other_words() -> None:
    found = rollout_report([*EVENTS, entry(240, "converge")], MEMBERS, RECORDS, {}, 250, is_current=True)
    assert [one["what"] for one in found["commands"]] == ["begin", "open", "open", "retry", "open", "converge"]
    who_did_what = html_page(found).partition("Who did what when")[2].partition("</section>")[0]
    assert "<td>admitted</td>" in who_did_what
    assert "compute1, compute2: slot" in who_did_what
    assert "<td>complete</td>" in who_did_what
    assert ">open<" not in who_did_what
    assert ">converge<" not in who_did_what


def test_the_rules_are_a_table_of_the_keys_that_messages_name() -> None:
    rules = {**RULES, "stages": [{"name": "canary", "hosts": 1, "soak": 600, "approve": True}]}
    begun = {**EVENTS[0], "instructions": rules}
    page = html_page(rollout_report([begun, *EVENTS[1:]], MEMBERS, RECORDS, {}, 250, is_current=True))
    table = page.partition("<h2>Rules</h2>")[2].partition("</table>")[0]
    assert re.findall('<tr><td>(.*?)</td><td class="long">(.*?)</td></tr>', table) == [
        ("rolling_rules.fleet", "3"), ("rolling_rules.roles.compute", "2"),
        ("stages[0]", "canary, 1 of each role, soaks 10m, needs an approval"),
    ]  # fmt: skip


def test_failures_that_are_only_counted_are_failures() -> None:
    failures = (Failure(175, 8, "nova", "stop", total=8), Failure(200, 9, "nova", "stop", "no space"))
    record = HostRecord("2", "upgraded", attempt=10, times={"started": 205, "upgraded": 205}, failures=failures)
    shown = html_page(rollout_report(EVENTS, MEMBERS, {"compute2": record}, {}, 250, is_current=True))
    assert "<b>9</b>failures in all" in shown
    assert "<td>failed, and 7 times before</td>" in shown


def test_groups_have_their_caps_and_no_role_is_taken_for_the_fleet() -> None:
    members = {"ceph-mon1": "ceph-mon", "ceph-osd1": "ceph-osd", "fleet1": "fleet"}
    rules = {"rolling_rules": {"global": 1, "fleet": 2}, "group_mappings": {"ceph": "ceph-.*"}}
    opened = entry(110, "open", hosts=dict.fromkeys(members, "slot"))
    found = rollout_report([{**EVENTS[0], "instructions": rules}, opened], members, {}, {}, 250, is_current=True)

    assert found["caps"] == {"group ceph": 1, "role fleet": 1, "the fleet": 2}
    most = {part: max(down for _at, down in steps) for part, steps in found["concurrency"].items()}
    assert most == {"the fleet": 3, "group ceph": 2, "role ceph-mon": 1, "role ceph-osd": 1, "role fleet": 1}


def test_times_that_no_clock_shows_are_passed_over() -> None:
    record = HostRecord(
        "2", "failed", times={"started": 2**52, "failed": -(2**52)}, trail=(StepStart(2**52, "a", "b"),)
    )
    events = [*EVENTS, entry(10**30, "pause", by="ann"), {**EVENTS[-1], "at": "noon"}]
    found = rollout_report(
        events, MEMBERS, {"compute1": record}, {"compute2": VersionReport("2", 9e11)}, 250, is_current=True
    )

    assert all(100 <= start <= end <= 250 for one in found["hosts"] for _phase, start, end, *_step in one["phases"])
    assert "<svg" in html_page(found)


def test_of_an_earlier_rollout_nothing_is_guessed() -> None:
    later = {host: HostRecord("3", "upgraded", times={"started": 400, "upgraded": 500}) for host in MEMBERS}

    left = rollout_report(EVENTS, MEMBERS, later, {}, 390, is_current=False, is_whole=False)
    assert (left["state"], left["end"]) == ("left", 390)
    assert {one["host"]: one["phase"] for one in left["hosts"]} == dict.fromkeys(
        ("controller1", "compute1", "compute2"), "admitted"
    )

    events = [
        *EVENTS,
        entry(220, "publish", hosts={"compute1": "2", "compute2": "1"}),
        entry(300, "converge", reason="all"),
    ]
    found = rollout_report(events, MEMBERS, later, {}, 900, is_current=False, is_whole=False)
    assert (found["state"], found["end"]) == ("converge", 300)
    # All hosts were upgraded when it ended. The end of the others is unknown, so their durations are not counted.
    assert {one["host"]: (one["phases"][-1][:2], one["end_known"]) for one in found["hosts"]} == {
        "controller1": (["upgraded", 300], False), "compute1": (["upgraded", 220], True), "compute2": (["upgraded", 300], False),
    }  # fmt: skip
    assert found["durations"]["compute"] == {"hosts": 1, "median": 70, "longest": 70}


def test_of_an_earlier_rollout_hosts_report_what_they_keep_of_it() -> None:
    trail = (StepStart(116, "nova", "stop"), StepStart(130, "nova", "start"))
    moves = {
        "controller1": HostRecord("2", "upgraded", times={"started": 115, "upgraded": 140}, trail=trail),
        "compute1": RECORDS["compute1"],
        # Another rollout to the same version, later.
        "compute2": HostRecord("2", "upgraded", times={"started": 600, "upgraded": 620}),
    }
    later = {
        host: HostRecord(
            "3", "started", times={"started": 700}, former=(HostRecord("1", "upgraded", times={"upgraded": 9}), move)
        )
        for host, move in moves.items()
    }
    found = rollout_report(EVENTS, MEMBERS, later, {}, 390, is_current=False, is_whole=False)
    hosts = {one["host"]: one for one in found["hosts"]}
    assert hosts["controller1"]["phases"] == [
        ["waiting", 100, 110, "", ""], ["admitted", 110, 115, "", ""], ["upgrading", 115, 116, "", ""],
        ["upgrading", 116, 130, "nova", "stop"], ["upgrading", 130, 140, "nova", "start"], ["upgraded", 140, 390, "", ""],
    ]  # fmt: skip
    assert (hosts["compute1"]["phase"], hosts["compute1"]["error"]) == ("failed", "no space")
    assert hosts["compute2"]["phase"] == "admitted"
    assert found["durations"]["controller"] == {"hosts": 1, "median": 30, "longest": 30}
    assert [(one["role"], one["step"]) for one in found["steps"]] == [("controller", "stop"), ("controller", "start")]


def test_a_host_without_a_record_is_upgraded_by_its_report() -> None:
    found = rollout_report(
        EVENTS, {"compute1": "compute"}, {}, {"compute1": VersionReport("2", 200.0)}, 250, is_current=True
    )

    assert found["hosts"][0]["phases"][-1] == ["upgraded", 200, 250, "", ""]


def test_an_end_is_the_same_whenever_it_is_read() -> None:
    events = [*EVENTS, entry(300, "complete", reason="every host is upgraded")]
    one, other = (rollout_report(events, MEMBERS, RECORDS, {}, now, is_current=True) for now in (400, 900))

    assert one == other
    assert one["end"] == 300


@pytest.mark.parametrize("what", ["complete", "abort"])
def test_what_an_operator_does_after_the_end_does_not_move_it(what: str) -> None:
    records = {host: one for host, one in RECORDS.items() if one.state != "started"}
    over = [*EVENTS, entry(300, what)]
    found = rollout_report(over, MEMBERS, records, {}, 900, is_current=True)
    later = rollout_report(
        [*over, entry(800, "hold", hosts={"compute1": "disk"})], MEMBERS, records, {}, 900, is_current=True
    )
    assert (later["state"], later["end"]) == (found["state"], found["end"]) == (what, 300)
    assert later["hosts"] == found["hosts"]


def test_a_complete_rollout_that_admits_a_host_that_joined_runs_again() -> None:
    events = [*EVENTS, entry(300, "complete"), entry(301, "converge"), entry(400, "open", hosts={"compute3": "slot"})]
    found = rollout_report(events, MEMBERS, RECORDS, {}, 900, is_current=True)
    assert (found["state"], found["end"]) == ("running", 900)
    (joined,) = (one for one in found["hosts"] if one["host"] == "compute3")
    assert joined["phases"][-1] == ["admitted", 400, 900, "", ""]
    found = rollout_report([*events, entry(950, "complete")], MEMBERS, RECORDS, {}, 990, is_current=True)
    assert (found["state"], found["end"]) == ("complete", 950)


class Reader(HTMLParser):
    """Collects the tags of a page with their attributes, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.names: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.names.update(name for name, _value in attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


@given(
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1).filter(lambda text: text != UNKNOWN_ROLE)
    | st.just("</title><script>x</script><b onx='")
)
def test_no_text_of_others_becomes_a_tag(text: str) -> None:
    plain, hostile = Reader(), Reader()
    for reader, text_, role in ((plain, "2", "r"), (hostile, text, text)):
        first = {**EVENTS[0], "version": text_, "who": text_, "reason": text_, "from": text_}
        record = HostRecord(text_, "failed", text_, text_, 1, text_, {"started": 160, "failed": 170})
        found = rollout_report([first, *EVENTS[1:]], {"compute1": role}, {"compute1": record}, {}, 250, is_current=True)
        reader.feed(html_page(found))

    assert hostile.tags == plain.tags
    assert hostile.names == plain.names
    assert "script" not in hostile.tags
    assert text in hostile.text
