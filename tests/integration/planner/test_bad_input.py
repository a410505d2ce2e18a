# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whatever stands in rules and keys: a call succeeds, or fails with a sentence and leaves everything as it was.

What can't be read is counted the safe way, so that it never admits a host.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from devkit.agent import Agent
from hypothesis import example, given, settings
from hypothesis import strategies as st
from integration.support.fleets import bad_data
from integration.support.fleets.bad_day import (
    APPROVAL,
    CAP,
    DONE,
    FLEET,
    HELD,
    HOLD,
    HOSTS,
    INSTRUCTIONS,
    LARGE,
    LEDGER,
    MARK,
    NOW,
    OPENED,
    RECORD,
    SITE,
    Site,
    assert_readable,
)
from integration.support.fleets.fleet import GATES
from integration.support.runs.playbook import Runner, info, plan
from missing import is_strict

pytestmark = pytest.mark.one_release

# In strict mode the same examples each time: what a search finds must not fail the test of an unrelated change.
fuzzed = settings(
    max_examples=int(os.environ.get("CONVOY_EXAMPLES", "70")),
    deadline=None,
    derandomize=is_strict() and "CONVOY_EXAMPLES" not in os.environ,
    print_blob=True,
)

RULES: dict[str, Any] = {
    "rolling_rules": {"global": 1, "roles": {"compute": "50%", "controller": 1}, "fleet": 3, "complete_sets": False},
    "role_order": {"compute": ["controller"]},
    "group_mappings": {"control": ["controller"]},
    "failure_rules": {"global": 2, "roles": {"controller": 1}, "fleet": "50%"},
    "health": {"soak": "5m", "progress_deadline": 3600, "consul_checks": ["serfHealth"]},
    "stages": [{"name": "canary", "hosts": 1, "roles": ["compute"], "soak": "1h", "approve": True}, {"hosts": "10%"}],
    "windows": [{"days": ["mon-fri", "sun"], "from": "22:00", "to": "05:00", "timezone": "Europe/Berlin"}],
    "freezes": [{"from": "2026-12-20", "to": "2027-01-06T12:00", "reason": "holidays", "timezone": "UTC"}],
}
_ANY_RULES = st.one_of(
    bad_data.mutated(RULES),
    bad_data.mutated(RULES),
    st.dictionaries(st.sampled_from((*RULES, "role_dependencies", "x")), bad_data.VALUES, max_size=4),
    st.dictionaries(bad_data.TEXTS, bad_data.VALUES, max_size=4),
)

Test = TypeVar("Test", bound=Callable[..., None])
PLAN, INFO, CONTROL = "consul_upgrade_plan", "consul_upgrade_info", "consul_upgrade_control"
REPORT, HOLDS, GATE = "consul_upgrade_host_report", "consul_upgrade_hold", "consul_enable_puppet"
STARTS = {"name": "compute2", "version": "2", "state": "started"}
GO_ON: tuple[str, dict[str, Any]] = (PLAN, {"hosts": "all"})
CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    GO_ON,
    (PLAN, {"converge": True, "limit": ["compute"], "fleet": FLEET}),
    (
        PLAN,
        {
            "version": "2",
            "instructions": {**INSTRUCTIONS, "rolling_rules": {"global": 1, "fleet": None, "roles": {}}},
        },
    ),
    (PLAN, {"version": "3", "replace": "2", "instructions": {"rolling_rules": {"global": 1}}}),
    (PLAN, {"role_order": {"compute": "controller"}}),
    (INFO, {}),
    (INFO, {"name": "compute2", "fleet": FLEET}),
    *((CONTROL, {"action": action}) for action in ("pause", "resume", "abort", "retry", "approve", "rollback")),
    (CONTROL, {"action": "retry", "hosts": ["compute2"]}),
    (CONTROL, {"action": "forget", "hosts": ["compute2"]}),
    *((REPORT, {"name": "compute2", "version": "2", "state": state}) for state in ("started", "failed", "upgraded")),
    (HOLDS, {"hosts": ["compute2", HELD], "reason": "a test"}),
    (HOLDS, {"hosts": ["compute2", HELD], "state": "absent"}),
    (GATE, {"scope": "host", "name": "compute2", "value": "True"}),
)
ANY_CALLS = st.sampled_from(CALLS)


@pytest.fixture(scope="module")
def site(agent: Agent) -> Site:
    return Site(agent)


def changed(document: dict[str, Any], **fields: Any) -> bytes:
    """Return a stored document with other fields, for values that no mutation may come upon."""
    return json.dumps({**document, **fields}).encode()


def regressions(*examples: dict[str, Any]) -> Callable[[Test], Test]:
    """Return a decorator that tries what once was a traceback, or a failure that had written already."""

    def with_examples(test: Test) -> Test:
        for one in examples:
            test = example(**one)(test)
        return test

    return with_examples


def opened(result: dict[str, Any]) -> set[str]:
    return {one["host"] for one in result["transitions"]}


def slots_left(result: dict[str, Any]) -> int:
    """Return how many computes more a pass might have admitted; less than none where it admitted too many."""
    admitted = {one["host"] for one in result["transitions"] if one["role"] == "compute" and one["from"] == "pending"}
    down = {host for host, view in result["hosts"].items() if view["state"] in ("failed", "lost", "upgrading")}
    taken = {host for host in down if FLEET[host] == "compute"} - admitted
    return max(0, CAP - len(taken)) - len(admitted)


def test_the_site_admits_two_hosts_when_nothing_is_bad(site: Site) -> None:
    site.restore()
    assert opened(site.call(PLAN)) == OPENED


@pytest.mark.thorough
@fuzzed
@given(_ANY_RULES, st.booleans())
@regressions(
    *(
        {"rules": rules, "is_on_its_way": True}
        for rules in (
            {"rolling_rules": {"global": "9" * 5000}},
            {"rolling_rules": {"global": bad_data.deep(300, mapping=False)}},
            {"health": {"soak": 10**400}},
            {"health": {"soak": "9" * 5000}},
            {"health": {"progress_deadline": 10**400}},
            {"health": {"consul_checks": '"\\'}},
            {"stages": [{"hosts": [DONE], "soak": 10**30}, {}]},
            {"group_mappings": {"a": "a{99999999999}"}},
            {"group_mappings": {"a": "(" * 2000}},
        )
    )
)
def test_any_rules(site: Site, rules: dict[str, Any], is_on_its_way: bool) -> None:
    site.restore(*(() if is_on_its_way else ("upgrade/ledger",)))
    # Rules of a running rollout are not left out, or nothing else of them would be looked at.
    ended = {
        "rolling_rules": {"global": 1, "fleet": None, "roles": {}},
        **({"health": {}, "stages": []} if is_on_its_way else {}),
    }
    call: dict[str, Any] = {"version": "2", "instructions": {**ended, **rules}, "fleet": FLEET}
    shown = site.call(PLAN, check=True, **call)
    done = site.call(PLAN, **call)
    assert shown["failed"] == done["failed"]
    if not done["failed"]:
        # What was taken once is taken from the ledger ever after.
        for module in (PLAN, INFO):
            again = site.call(module)
            assert not again["failed"], again["msg"]


@pytest.mark.thorough
@fuzzed
@given(st.dictionaries(st.sampled_from(("global", "role/compute", "host/compute2", "host/compute5")), st.one_of(
    st.sampled_from((b"True", b"false", b" TRUE\n", b"2", b"1", b"v2.0", b"Flase", b"yes", b"on", b"{}", b'"1"', b"1\x002")),
    bad_data.no_json(), bad_data.TEXTS.map(lambda text: text.encode(errors="replace"))), min_size=1), ANY_CALLS)  # fmt: skip
@regressions({"gates": {"global": b"9" * 5000}, "call": (REPORT, STARTS)})
def test_any_gates(site: Site, gates: dict[str, bytes], call: tuple[str, dict[str, Any]]) -> None:
    keys = {f"{GATES}/{name}": value for name, value in gates.items()}
    site.lay({**SITE, **keys})
    bad = {key for key, value in keys.items() if not is_readable(value)}
    module, options = call
    result = site.call(module, **options)
    begins = options.get("version") == "3" or options.get("action") == "rollback"
    if module == PLAN and bad and not begins:
        assert result["failure"]["code"] == "unreadable_gate"
        assert set(result["failure"]["details"]["keys"]) == bad
    elif module != GATE:
        # A start is refused behind a closed gate; to resume and to approve something there has to be something; a host behind an open
        # gate may be at work, and is not forgotten.
        may_fail = options == STARTS or options.get("action") in ("resume", "approve", "forget")
        assert not result["failed"] or may_fail, result["msg"]


def is_readable(value: bytes) -> bool:
    """Return whether a gate is true, false or a version, as its documentation has it."""
    try:
        text = value.decode().strip()
    except UnicodeDecodeError:
        return False
    if text.lower() in ("true", "false"):
        return True
    return text.isprintable() and any(one.isdigit() for one in text) and text[0] not in "{[\"'"


@pytest.mark.thorough
@fuzzed
@given(st.dictionaries(st.sampled_from(HOSTS), bad_data.stored(RECORD), min_size=1), ANY_CALLS)
@regressions(
    {"records": {"compute1": changed(RECORD, times={"started": 10**400})}, "call": GO_ON},
    {"records": {"compute2": changed(RECORD, attempt=10**4300 - 1)}, "call": (REPORT, STARTS)},
)
def test_any_records(site: Site, records: dict[str, bytes], call: tuple[str, dict[str, Any]]) -> None:
    site.lay({**SITE, **{f"upgrade/hosts/{host}": value for host, value in records.items()}})
    module, options = call
    result = site.call(module, **options)
    if call == GO_ON and not result["failed"]:
        assert slots_left(result) >= 0


def test_a_record_of_a_version_that_is_no_name_is_not_published(site: Site) -> None:
    upgraded = {"state": "upgraded", "times": {"upgraded": NOW}}
    for version in ("", "2/compute3", "a/b", "true", " 2", "2\n"):
        site.lay({**SITE, "upgrade/hosts/compute2": changed(RECORD, version=version, **upgraded)})
        assert "compute2" in site.call(GO_ON[0], **GO_ON[1])["status"]["failed"]
        assert {key for key in site.found() if key.startswith("running/")} == {
            key for key in SITE if key.startswith("running/")
        }


@pytest.mark.thorough
@fuzzed
@given(st.dictionaries(st.sampled_from(HOSTS), bad_data.no_json(), min_size=1))
def test_unreadable_records_are_failed_hosts_with_a_slot(site: Site, records: dict[str, bytes]) -> None:
    site.lay({**SITE, **{f"upgrade/hosts/{host}": value for host, value in records.items()}})
    result = site.call(PLAN, hosts="all")
    assert not result["failed"], result["msg"]
    # One that came with the report is no newer than that.
    assert set(result["status"]["failed"]) == {host for host in records if host != DONE or len(records[host]) > LARGE}
    assert opened(result) <= OPENED - {*records}
    assert slots_left(result) >= 0


@fuzzed
@given(bad_data.stored(LEDGER), ANY_CALLS)
@regressions(
    {"ledger": changed(LEDGER, stage={"number": -5}), "call": GO_ON},
    {"ledger": changed(LEDGER, stage={"number": 0, "done_at": 10**400}), "call": GO_ON},
    {"ledger": changed(LEDGER, state="paused", command={"at": 10**20}), "call": GO_ON},
    {"ledger": changed(LEDGER, role_pattern="(a){99999999999}"), "call": GO_ON},
    {"ledger": changed(LEDGER, role_pattern="(" * 2000), "call": GO_ON},
    {"ledger": changed(LEDGER, command={"a": bad_data.deep(450, mapping=True)}), "call": (INFO, {})},
    {"ledger": changed(LEDGER).replace(b'"epoch": 7', b'"epoch": ' + b"9" * 4300), "call": GO_ON},
)
def test_any_ledger(site: Site, ledger: bytes, call: tuple[str, dict[str, Any]]) -> None:
    site.lay({**SITE, "upgrade/ledger": ledger})
    module, options = call
    site.call(module, **options)


@pytest.mark.thorough
@fuzzed
@given(bad_data.no_json(), ANY_CALLS)
def test_an_unreadable_ledger_stops_everything_but_reports_gates_and_holds(
    site: Site, ledger: bytes, call: tuple[str, dict[str, Any]]
) -> None:
    site.lay({**SITE, "upgrade/ledger": ledger})
    module, options = call
    result = site.call(module, **options)
    if module in (REPORT, GATE, HOLDS):
        # A start needs an open gate.
        assert not result["failed"] or options == STARTS, result["msg"]
    else:
        assert result["failure"]["code"] == "unreadable_ledger"
        assert "upgrade/ledger" in result["msg"]


@pytest.mark.thorough
@fuzzed
@given(
    st.sampled_from(("global", "role/compute", "host/compute2", f"host/{HELD}")),
    st.one_of(bad_data.stored(HOLD), bad_data.TEXTS.map(lambda text: text.encode(errors="replace"))),
    ANY_CALLS,
)
def test_any_hold_holds(site: Site, name: str, hold: bytes, call: tuple[str, dict[str, Any]]) -> None:
    site.lay({**SITE, f"upgrade/hold/{name}": hold})
    module, options = call
    site.call(module, **options)
    site.lay({**SITE, f"upgrade/hold/{name}": hold})
    result = site.call(PLAN, hosts="all")
    assert not result["failed"], result["msg"]
    covered = {host for host, role in FLEET.items() if name in ("global", f"role/{role}", f"host/{host}")}
    assert not opened(result) & covered


@pytest.mark.thorough
@fuzzed
@given(bad_data.stored(MARK), ANY_CALLS)
@regressions({"mark": changed(MARK, since=10**400), "call": GO_ON})
def test_any_mark(site: Site, mark: bytes, call: tuple[str, dict[str, Any]]) -> None:
    site.lay({**SITE, f"upgrade/health/{DONE}": mark})
    module, options = call
    site.call(module, **options)


def _is_printable(value: bytes) -> bool:
    """Return whether an operator may have written it by hand, as an approval may be."""
    return any(32 < byte < 127 or byte > 127 for byte in value)


@pytest.mark.thorough
@fuzzed
@given(bad_data.no_json(), bad_data.no_json().filter(lambda value: not _is_printable(value)))
def test_unreadable_marks_and_approvals_count_as_missing(site: Site, mark: bytes, approval: bytes) -> None:
    site.lay({**SITE, f"upgrade/health/{DONE}": mark})
    result = site.call(PLAN, hosts="all")
    assert DONE in result["status"]["upgrading"]
    assert not opened(result)
    site.lay({**SITE, "upgrade/approval/canary": approval})
    result = site.call(PLAN, hosts="all")
    assert result["needs_approval"]
    assert not opened(result)


@pytest.mark.thorough
@fuzzed
@given(bad_data.stored(APPROVAL), ANY_CALLS)
def test_any_approval(site: Site, approval: bytes, call: tuple[str, dict[str, Any]]) -> None:
    site.lay({**SITE, "upgrade/approval/canary": approval})
    module, options = call
    site.call(module, **options)


@pytest.mark.thorough
@fuzzed
@regressions(
    {"keys": {"upgrade/history/6": b"[" * 20_000}, "call": (INFO, {})},
    {"keys": {"upgrade/hosts/42": b"{}"}, "call": (CONTROL, {"action": "abort"})},
)
@given(
    st.dictionaries(bad_data.KEYS, st.one_of(st.just(b"1"), st.binary(max_size=9)), min_size=1, max_size=3), ANY_CALLS
)
def test_any_keys_at_all(site: Site, keys: dict[str, bytes], call: tuple[str, dict[str, Any]]) -> None:
    site.lay({**SITE, **keys})
    module, options = call
    site.call(module, **options)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[" * 20_000, "it is nested too deeply"),
        (b'{"rolling_rules": {"global": %s}}' % (b"9" * 5000), "integer string conversion"),
        (b"rolling_rules: {global: %s}" % (b"9" * 5000), "integer string conversion"),
        (b"freezes: [{from: 2026-13-45, to: 2027-01-06}]", "month must be in 1..12"),
    ],
    ids=["nested", "digits in json", "digits in yaml", "no date"],
)
def test_a_file_that_can_not_be_read_is_named(site: Site, tmp_path: Path, content: bytes, message: str) -> None:
    site.restore()
    (tmp_path / "rules").write_bytes(content)
    result = site.call(PLAN, version="2", instructions_file=str(tmp_path / "rules"))
    # Early releases of Python 3.10 read numbers of any length.
    assert message in result["msg"] or "is not a cap" in result["msg"]
    assert str(tmp_path / "rules") in result["msg"]


@pytest.mark.thorough
def test_ansible_itself_shows_the_sentence(run: Runner, site: Site) -> None:
    site.lay({**SITE, "upgrade/ledger": b"[" * 20_000})
    before = site.found()
    rules = {"rolling_rules": {"global": "9" * 5000}, "windows": [{"timezone": "\0"}]}
    played = run([plan(), info(), plan(version="2", instructions=rules)])
    assert [one["failure"]["code"] for one in played] == ["unreadable_ledger", "unreadable_ledger", "bad_instructions"]
    for one in played:
        assert_readable(one)
    assert site.found() == before
