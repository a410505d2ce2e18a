# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Extra variables that are probably misspelled."""

from __future__ import annotations

import re
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.plugin_utils._run.known_variables import (
    VARIABLES,
    refuse_bad_booleans,
    refuse_bad_job,
    refuse_empty_names,
    refuse_unknown_variables,
)
from devkit.agent import ROOT

# Variables that playbooks pass to their tasks, or that Ansible sets.
_INNER = {"upgrade_hook", "upgrade_hook_why", "upgrade_part", "upgrade_play", "upgrade_rollback"}
_INNER |= {"upgrade_tasks_folder", "upgrade_order_suffix", "upgrade_planner", "upgrade_pushes"}


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("instruction_file", "instructions_file"),
        ("instructions-file", "instructions_file"),
        ("Version", "version"),
        ("hosts", "host"),
        ("roles", "role"),
        ("rules", "instructions"),
        ("rules_file", "instructions_file"),
        ("puppet_gate_intervall", "puppet_gate_interval"),
        ("pupet_gate_role", "puppet_gate_role"),
        ("limit", "upgrade_limit"),
        ("upgrade_limt", "upgrade_limit"),
        ("upgrade_version", "version"),
        ("upgrade_consul_tokn", "upgrade_consul_token"),
        ("retry_fail", "retry_failed"),
    ],
)
def test_a_misspelled_variable_is_refused_with_the_right_one(name: str, meant: str) -> None:
    with pytest.raises(UpgradeError) as refused:
        refuse_unknown_variables("hold", {name: "x"})
    assert refused.value.code == "unknown_variable"
    assert f"did you mean '{meant}'?" in refused.value.message
    assert refused.value.details["renamed"] == {name: meant}
    refuse_unknown_variables("hold", {name: "x", "upgrade_own_variables": f"mine, {name}"})
    refuse_unknown_variables("hold", {name: "x", "upgrade_own_variables": [name]})


@pytest.mark.parametrize(
    "name",
    ["shop_version", "db_version", "nginx_packages", "puppet_gate_role", "ansible_user", "env", "storage", "my", "x"],
)
def test_variables_of_services_and_of_ansible_are_accepted(name: str) -> None:
    refuse_unknown_variables("upgrade", {name: "x"})


@pytest.mark.parametrize(
    ("playbook", "name", "instead"),
    [
        ("upgrade", "host", "-e upgrade_limit=NAME"),
        ("rollback", "host", "-e upgrade_limit=NAME"),
        ("upgrade", "role", "-e upgrade_limit=NAME"),
        ("role", "host", "-e upgrade_limit=NAME"),
        ("upgrade", "stage", "leave stage out"),
        # Without it, all failed hosts would be retried.
        ("retry", "role", "name hosts with -e host=NAME"),
        ("retry", "upgrade_limit", "name hosts with -e host=NAME"),
        (
            "enroll",
            "host",
            "would enroll all hosts that --limit leaves. Nothing was done: name hosts or groups of the inventory with -e upgrade_nodes=NAME",
        ),
        ("pause", "host", "leave host out"),
        ("abort", "role", "leave role out"),
        ("global_disable", "host", "leave host out"),
    ],
)
def test_a_variable_that_a_playbook_would_ignore_is_refused(playbook: str, name: str, instead: str) -> None:
    with pytest.raises(UpgradeError, match=re.escape(instead)):
        refuse_unknown_variables(playbook, {"version": "2", name: "x"})


@pytest.mark.parametrize(
    ("playbook", "name"), [("role", "role"), ("hold", "host"), ("retry", "host"), ("approve", "stage")]
)
def test_playbooks_with_the_variable_accept_it(playbook: str, name: str) -> None:
    refuse_unknown_variables(playbook, {name: "x"})


def test_a_name_that_only_looks_like_an_option_of_nodes_is_refused_without_a_hint() -> None:
    with pytest.raises(UpgradeError) as refused:
        refuse_unknown_variables("enroll", {"puppet_gate_qqq": "x"})
    assert "ansible-doc -t role convoy.upgrade.puppet_gate" in refused.value.message
    assert refused.value.details["renamed"] == {"puppet_gate_qqq": ""}
    refuse_unknown_variables(
        "enroll", {"tollgate_role": "x", "puppet_gate_settings_dir": "x", "puppet_gate_services_tmp": "x"}
    )


def test_a_key_of_the_rules_that_is_given_as_a_variable_is_refused_with_where_it_belongs() -> None:
    for name, value in {"rolling_rules": {"global": 1}, "freezes": [], "role_dependencies": {}}.items():
        for playbook in ("upgrade", "command"):
            with pytest.raises(UpgradeError) as refused:
                refuse_unknown_variables(playbook, {name: value})
            assert "It is a key of the rules" in refused.value.message
            # A command with these rules alone would drop those of the inventory.
            assert "variables" not in refused.value.details
            assert refused.value.details["renamed"] == {name: ""}
    refuse_unknown_variables("upgrade", {"windows": [], "upgrade_own_variables": "windows"})
    refuse_unknown_variables("status", {"windows": []})
    refuse_unknown_variables("upgrade", {"rollback_order": "forward"})


def test_every_variable_of_the_playbooks_is_known() -> None:
    text = "".join(path.read_text() for path in (ROOT / "playbooks").rglob("*.yml"))
    given = {
        one for line in re.findall(r"^#.*ansible-playbook .*$", text, re.M) for one in re.findall(r"-e \"?(\w+)=", line)
    }
    assert given
    used = {*re.findall(r"(?<![\w.] )(?<![\w.])(\w+) \| default\(", text), *re.findall(r"\{\{ (upgrade_\w+)\b", text)}
    set_here = set(re.findall(r"^ +(?:register: )?(upgrade_\w+)(?::|$)", text, re.M))
    others = {one for one in used | given if re.match(r"(push|ansible|fleet|puppet)_|item$|first$", one)}
    assert (used | given) - {*VARIABLES, *_INNER, *set_here} - others == set()


def test_every_known_variable_is_used() -> None:
    text = "".join(
        path.read_text() for name in ("playbooks", "roles", "plugins") for path in (ROOT / name).rglob("*.*ml")
    )
    assert {one for one in VARIABLES if one not in text} == {"upgrade_may_stop_timeout", "upgrade_own_variables"}


def test_control_characters_are_not_printed() -> None:
    given: dict[str, Any] = {"instruction_file\x1b": "x"}
    with pytest.raises(UpgradeError) as refused:
        refuse_unknown_variables("upgrade", given)
    assert refused.value.message.isprintable()


@pytest.mark.parametrize("value", ["", " , ", None])
@pytest.mark.parametrize("name", ["host", "role", "stage"])
def test_an_empty_name_is_refused(name: str, value: str | None) -> None:
    with pytest.raises(UpgradeError) as refused:
        refuse_empty_names({"version": "", name: value})
    assert refused.value.code == "empty_variable"
    assert refused.value.message.startswith(f"{name} is empty")
    assert refused.value.details["variables"] == {name: "NAME"}


def test_names_and_other_empty_variables_are_accepted() -> None:
    refuse_empty_names({"host": "compute1,compute2", "role": ["compute"], "stage": 1, "reason": ""})


@pytest.mark.parametrize("value", ["flase", "", 2, None, ["true"]])
def test_what_is_neither_true_nor_false_is_refused(value: Any) -> None:
    with pytest.raises(UpgradeError) as refused:
        refuse_bad_booleans({"version": "2", "wait": value})
    assert refused.value.code == "bad_options"
    assert refused.value.message.startswith(f"wait: {value!r} is neither true nor false")
    found = refused.value.details
    assert (found["variables"], found["renamed"]) == (
        ({"wait": "false"}, {}) if value == "flase" else ({}, {"wait": ""})
    )


def test_booleans_in_each_spelling_and_templates_are_accepted() -> None:
    refuse_bad_booleans({"wait": "no", "once": True, "force": "1", "restart": "{{ again }}", "follow": 0})
    refuse_bad_booleans({"force": "some", "upgrade_own_variables": "force"})


@pytest.mark.parametrize(
    ("name", "meant"), [("onyl", "only"), ("onlyy", "only"), ("runn", "run"), ("jobb", "job"), ("arg", "args")]
)
def test_a_typo_of_a_short_name_is_found_where_it_is_a_variable(name: str, meant: str) -> None:
    with pytest.raises(UpgradeError) as refused:
        refuse_unknown_variables("command", {"run": "restart", name: "x"})
    assert refused.value.details["renamed"] == {name: meant}
    # Elsewhere, such a name is rather one of the operator's own.
    refuse_unknown_variables("upgrade", {name: "x"})


@pytest.mark.parametrize("playbook", ["abort", "pause", "resume", "approve", "retry", "upgrade"])
def test_a_job_is_named_only_where_that_decides_what_is_done(playbook: str) -> None:
    with pytest.raises(UpgradeError) as refused:
        refuse_unknown_variables(playbook, {"job": "restart-1"})
    assert refused.value.code == "unknown_variable"
    assert f"{playbook}.yml has no such variable" in refused.value.message
    refuse_unknown_variables("command", {"job": "restart-1"})
    refuse_unknown_variables("status", {"job": "restart-1"})


@pytest.mark.parametrize("name", ["run", "args", "only", "expires", "sign_with"])
def test_a_job_that_is_continued_takes_no_variable_of_a_new_one(name: str) -> None:
    with pytest.raises(UpgradeError, match=rf"^{name} can't be given with job: .*leave it out") as caught:
        refuse_bad_job("command", {"job": "restart-1", name: "x", "run_tasks": "restart.yml", "instructions": {}})
    assert caught.value.details["renamed"] == {name: ""}
    refuse_bad_job("command", {name: {}, "run_tasks": "restart.yml"})
    refuse_bad_job("status", {"job": "restart-1", name: "x"})


@pytest.mark.parametrize("args", ["5", 5, ["a"], None, "a=1"])
def test_arguments_that_are_no_mapping_are_refused_with_their_form(args: Any) -> None:
    with pytest.raises(UpgradeError, match="is no mapping of names to values") as caught:
        refuse_bad_job("command", {"run": "restart", "args": args})
    assert caught.value.details["variables"] == {"args": {"NAME": "VALUE"}}


@pytest.mark.parametrize("args", [{"grace": 30}, {}, "{{ arguments }}"])
def test_mappings_and_templates_are_arguments(args: Any) -> None:
    refuse_bad_job("command", {"run": "restart", "args": args})


@pytest.mark.parametrize(("name", "value"), [("once", "true"), ("once", True), ("wait", "no"), ("wait", False)])
def test_a_run_that_does_not_wait_can_not_wait_for_another_one(name: str, value: Any) -> None:
    for playbook, given in (("command", {"run": "restart"}), ("upgrade", {"version": "2"})):
        with pytest.raises(UpgradeError, match=f"wait_for_other can't be given with {name}=") as caught:
            refuse_bad_job(playbook, {**given, "wait_for_other": "true", name: value})
        assert caught.value.details["renamed"] == {name: ""}
    refuse_bad_job("command", {"run": "restart", "wait_for_other": "false", name: value})


def test_only_what_begins_something_waits_for_what_is_under_way() -> None:
    given = {"wait_for_other": True}
    for playbook in ("command", "upgrade", "controlplane", "dataplane", "role"):
        refuse_unknown_variables(playbook, given)
    with pytest.raises(
        UpgradeError, match=r"rollback\.yml has no such variable, and would not wait\. Nothing was done"
    ):
        refuse_unknown_variables("rollback", given)


@pytest.mark.parametrize(
    ("given", "meant"), [("hots", "host"), ("raeson", "reason"), ("rloe", "role"), ("sateg", "stage")]
)
def test_swapped_letters_of_a_short_name_are_a_typo(given: str, meant: str) -> None:
    """``retry -e hots=web2`` would retry all hosts."""
    with pytest.raises(UpgradeError, match=f"did you mean '{meant}'") as caught:
        refuse_unknown_variables("retry", {given: "web2"})
    assert caught.value.details["renamed"] == {given: meant}
