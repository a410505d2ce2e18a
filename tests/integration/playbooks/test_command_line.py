# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options that Ansible would ignore are refused by every playbook, before anything is done."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import control
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.rollback import roll_back
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.plugin_utils._run.limit import honours_limit
from devkit.agent import ROOT
from devkit.kv import RawKV
from integration.support.fleets.fleet import names, seed
from integration.support.runs.playbook import Runner
from integration.support.runs.shipped import Shipped, inventory
from thorough import quick

PLAYBOOKS = sorted((ROOT / "playbooks").glob("*.yml"))


@pytest.mark.thorough
def test_words_that_belong_to_no_variable_are_refused_with_the_right_quoting(play: Shipped, consul: RawKV) -> None:
    seed(consul, names(web=2))
    before = consul.tree()
    done = play("hold", "-e", "host=web1", "-e", "reason=two words")
    assert done.returncode == 5, done.stdout
    assert "the value of reason ends before 'words'" in done.stdout
    *_lines, last = done.stdout.splitlines()
    assert last.startswith("Next: ")
    assert last.endswith("-e host=web1 -e \"reason='two words'\"")
    assert consul.tree() == before


@pytest.mark.parametrize(
    ("playbook", "given", "instead"),
    quick(
        1,
        [
            ("upgrade", "instruction_file=rules.yml", "instructions_file=rules.yml"),
            ("upgrade", "host=web1", "upgrade_limit=web1"),
            ("retry", "hosts=web1", "host=web1"),
        ],
    ),
)
def test_a_variable_that_would_be_ignored_is_refused_with_the_one_that_is_meant(
    play: Shipped, consul: RawKV, playbook: str, given: str, instead: str
) -> None:
    seed(consul, names(web=2))
    before = consul.tree()
    done = play(playbook, "-e", given)
    assert done.returncode == 5, done.stdout
    assert f"-e {given.partition('=')[0]}: " in done.stdout
    last = done.stdout.splitlines()[-1]
    assert last.startswith("Next: ")
    assert last.endswith(f"-e {instead}")
    assert consul.tree() == before


@pytest.mark.thorough
@pytest.mark.parametrize(
    "given", [("--step",), ("--start-at-task", "Stop"), ("--start-at-task=Stop",), ("--force-handlers",)]
)
def test_an_option_that_a_rollout_can_not_follow_is_refused(
    play: Shipped, consul: RawKV, given: tuple[str, ...]
) -> None:
    seed(consul, names(web=2))
    before = consul.tree()
    done = play("upgrade", *given, "-e", "version=2")
    assert done.returncode == 5, done.stdout
    option = given[0].partition("=")[0]
    assert f"[refused_option] {option}: " in done.stdout
    last = done.stdout.splitlines()[-1]
    assert last.startswith("Next: ")
    assert last.endswith("-e version=2")
    assert option not in last
    assert "Stop" not in last
    assert consul.tree() == before


def test_tags_that_would_skip_a_command_are_refused(play: Shipped, consul: RawKV) -> None:
    seed(consul, names(web=2))
    before = consul.tree()
    done = play("pause", "--tags", "x", "-e", "reason=disk")
    assert done.returncode == 5, done.stdout
    assert "[refused_option] --tags: Ansible would skip what convoy.upgrade.pause does" in done.stdout
    last = done.stdout.splitlines()[-1]
    assert last.startswith("Next: ")
    assert last.endswith("-e reason=disk")
    assert consul.tree() == before


@pytest.fixture
def site(play: Shipped) -> str:
    """Return a playbook that prints the arguments for SSH, fails, and imports another one after that."""
    shown = {"ansible.builtin.fail": {"msg": "ssh: {{ lookup('env', 'ANSIBLE_SSH_EXTRA_ARGS') }}"}}
    plays = [
        {"hosts": "localhost", "gather_facts": False, "tags": ["always"], "tasks": [shown]},
        {"ansible.builtin.import_playbook": "convoy.upgrade.upgrade"},
    ]
    # A role may have the name of a playbook.
    (play.folder / "node.yml").write_text(json.dumps(plays))
    return str(play.folder / "node")


@pytest.mark.parametrize("option", ["--step", "--start-at-task=Stop"])
def test_an_option_that_a_rollout_can_not_follow_is_refused_for_a_playbook_that_imports_it(
    play: Shipped, site: str, option: str
) -> None:
    done = play(site, option, "-e", "version=2")
    assert done.returncode == 5, done.stdout
    assert f"[refused_option] {option.partition('=')[0]}: " in done.stdout
    last = done.stdout.splitlines()[-1]
    assert last.startswith("Next: ")
    assert last.endswith("-e version=2")


def test_a_playbook_that_imports_a_rollout_keeps_its_connections_alive(play: Shipped, site: str) -> None:
    done = play(site, "-e", "version=2")
    assert done.returncode == 2, done.stdout
    assert "ssh: -o ServerAliveInterval=10 -o ServerAliveCountMax=6" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("Next: ")


@pytest.mark.parametrize(
    ("playbook", "limit", "left_out", "instead"),
    quick(
        2,
        [
            ("upgrade", "web1", "localhost, web2", "upgrade_limit=web1"),
            # The first play would have begun the rollout.
            ("rollback", "localhost,web1", "web2", "upgrade_limit=web1"),
            ("retry", "web1", "localhost", "host=web1"),
            ("pause", "web1", "localhost", "version=2"),
            # Without a limit, what comes next would run on every host.
            ("post_upgrade", "web1", "localhost, web2", "upgrade_limit=web1"),
        ],
    ),
)
def test_a_limit_that_leaves_out_what_a_playbook_needs_is_refused_with_what_to_give_instead(
    play: Shipped, consul: RawKV, playbook: str, limit: str, left_out: str, instead: str
) -> None:
    hosts = names(web=2)
    seed(consul, hosts)
    before = consul.tree()
    done = play(playbook, "--limit", limit, "-e", "version=2", inventory=inventory(hosts))
    assert done.returncode == 5, done.stdout
    assert f"--limit {limit} leaves out {left_out}, where {playbook}.yml may have to run" in done.stdout
    last = done.stdout.splitlines()[-1]
    assert last.startswith("Next: ")
    assert last.endswith(f"-e {instead}")
    assert "--limit" not in last
    assert consul.tree() == before


def test_a_limit_with_hosts_outside_the_fleet_is_given_as_upgrade_limit(play: Shipped, consul: RawKV) -> None:
    hosts = names(web=3)
    seed(consul, hosts)
    # The planner host is in no role, and neither is the monitoring host of the group.
    site = {**inventory(hosts), "rack": ["web1", "web2", "monitoring1"]}
    limited = {"inventory": site, "upgrade_roles": {"web": {}}, "version": "2"}
    done = play("upgrade", "--limit", "localhost,rack,!web2", **limited)
    assert done.returncode == 5, done.stdout
    last = done.stdout.splitlines()[-1]
    assert last.endswith("""-e '{"upgrade_limit": "rack,!web2"}'"""), last
    again = play(
        "upgrade",
        "--check",
        **limited,
        upgrade_limit="rack,!web2",
        instructions={"rolling_rules": {"global": "unlimited"}},
    )
    assert again.returncode == 0, again.stdout


@pytest.mark.parametrize(
    ("playbook", "limit", "instead", "outside"),
    quick(
        1,
        [
            ("upgrade", "monitoring1", "upgrade_limit=NAME", "monitoring1 is"),
            # Otherwise, all hosts but web2.
            ("upgrade", "monitoring1,!web2", "upgrade_limit=NAME", "monitoring1 is"),
            ("upgrade", "web1,monitoring1", "upgrade_limit=web1", "monitoring1 is"),
            ("upgrade", "localhost,web,!monitor*", "upgrade_limit=web", "monitoring1, monitoring2 are"),
            ("command", "monitoring1", "only=NAME", "monitoring1 is"),
        ],
    ),
)
def test_a_limit_to_hosts_in_no_role_is_not_given_as_a_variable_that_would_refuse_them(
    play: Shipped, consul: RawKV, playbook: str, limit: str, instead: str, outside: str
) -> None:
    hosts = names(web=2)
    seed(consul, hosts)
    site = {**inventory(hosts), "others": ["monitoring1", "monitoring2"]}
    done = play(playbook, "--limit", limit, inventory=site, upgrade_roles={"web": {}})
    assert done.returncode == 5, done.stdout
    assert f"{outside} in no role of upgrade_roles" in done.stdout
    last = done.stdout.splitlines()[-1]
    assert last.startswith("Next: ") and last.endswith(f"-e {instead}"), last


def test_a_status_ends_with_what_an_operator_has_to_do(play: Shipped, begun: Store) -> None:
    shown = play("status").stdout.splitlines()
    assert not any(line.startswith("Needs an operator: ") for line in shown)
    control.pause(begun, control.Command("lunch"))
    *_others, need, last = play("status").stdout.splitlines()
    assert need.startswith("Needs an operator: ") and "lunch" in need
    # With another release of Ansible, its program has its whole path.
    assert last.startswith("Next: ") and "ansible-playbook " in last and "/resume.yml" in last


def test_another_order_of_a_rollback_under_way_is_refused_with_a_command_that_works(
    play: Shipped, begun: Store, consul: RawKV
) -> None:
    write_report(begun, HostReport("controller1", "2", "upgraded"))
    roll_back(begun, control.Command("logins fail"))
    before = consul.tree()
    done = play("rollback", rollback_order="forward")
    assert done.returncode == 2 and "is under way with reversed" in done.stdout, done.stdout
    last = done.stdout.splitlines()[-1]
    assert last.startswith("Next: ") and "/rollback.yml" in last and "rollback_order" not in last
    assert consul.tree() == before


def test_a_limit_of_a_playbook_that_imports_a_rollout_is_refused_with_what_to_give_instead(
    play: Shipped, site: str
) -> None:
    done = play(site, "--limit", "web1", "-e", "version=2", inventory=inventory(names(web=2)))
    assert done.returncode == 5, done.stdout
    assert done.stdout.splitlines()[-1].endswith("-e upgrade_limit=web1")


@pytest.mark.parametrize(
    ("options", "asked"),
    quick(
        1,
        [
            (["-e", "upgrade_nodes=wbe"], "'wbe'"),
            (["--limit", "web1", "-e", "upgrade_nodes=web2"], "'web2' and --limit web1"),
        ],
    ),
)
def test_hosts_to_enroll_that_do_not_exist_are_refused(play: Shipped, options: list[str], asked: str) -> None:
    done = play("enroll", *options, inventory=inventory(names(web=2)))
    assert done.returncode == 5, done.stdout
    assert f"[no_hosts] No host of the inventory matches {asked}, so enroll.yml would do nothing." in done.stdout
    last = done.stdout.splitlines()[-1]
    assert last.startswith("Next: ")
    assert last.endswith("-e upgrade_nodes=NAME")
    assert "--limit" not in last


@pytest.mark.parametrize(
    ("playbook", "tag"), quick(1, [("upgrade", "validate"), ("rollback", "prepare"), ("upgrade", "nope")])
)
@pytest.mark.usefixtures("begun")
def test_tags_are_refused_where_all_hosts_upgrade_themselves(
    play: Shipped, consul: RawKV, playbook: str, tag: str
) -> None:
    before = consul.tree()
    done = play(
        playbook, "--tags", tag, "-e", "version=2", "-e", "replace=2", instructions={"rolling_rules": {"global": 1}}
    )
    assert done.returncode == 2, done.stdout
    assert f"[no_such_tag] --tags {tag}: all hosts upgrade themselves" in " ".join(done.stdout.split())
    last = done.stdout.splitlines()[-1]
    assert last.startswith("Next: ") and "--tags" not in last
    assert consul.tree() == before


@pytest.mark.parametrize(
    ("playbook", "planner", "why"),
    [
        ("hold", "wbe1", "No host of the inventory matches 'wbe1', so hold.yml would do nothing; did you mean 'web1'?"),
        ("upgrade", "web", "'web' is web1, web2, and upgrade.yml runs on one host."),
        ("pause", "", "upgrade_planner_host is empty"),
    ],
)
def test_a_planner_host_that_is_not_one_host_of_the_inventory_is_refused(
    play: Shipped, consul: RawKV, playbook: str, planner: str, why: str
) -> None:
    hosts = names(web=2)
    seed(consul, hosts)
    before = consul.tree()
    given = ("-e", "host=web1") if playbook == "hold" else ()
    done = play(playbook, *given, "-e", f"upgrade_planner_host={planner}", inventory=inventory(hosts))
    assert done.returncode == 5, done.stdout
    assert why in done.stdout
    last = done.stdout.splitlines()[-1]
    assert last.startswith("Next: ")
    assert last.endswith("-e upgrade_planner_host=NAME")
    assert consul.tree() == before


@pytest.mark.thorough
def test_a_limit_that_keeps_the_planner_is_fine_where_nothing_else_is_needed(play: Shipped, consul: RawKV) -> None:
    hosts = names(web=2)
    seed(consul, hosts)
    given = {"upgrade_planner_host": "deploy1", "ansible_connection": "local"}
    done = play("status", "--limit", "deploy1", inventory={**inventory(hosts), "operators": ["deploy1"]}, **given)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", PLAYBOOKS, ids=lambda path: path.stem)
def test_only_playbooks_that_run_on_the_nodes_honour_a_limit(path: Path) -> None:
    first = yaml.safe_load(path.read_text())[0]
    assert honours_limit(str(path)) == ("upgrade_nodes" in str(first.get("hosts")))


def test_a_run_whose_output_is_no_longer_read_ends(play: Shipped, begun: Store) -> None:
    process = play.start("status", follow=True)
    assert process.stdout is not None
    assert process.stdout.readline()
    process.stdout.close()
    try:
        # As after Ctrl-C.
        assert process.wait(90) == 99
    finally:
        process.kill()
    assert begun is not None


def test_lines_act_on_no_terminal(run: Runner) -> None:
    """Keys of Consul have any characters, and messages name keys."""
    (shown,) = run([{"convoy.upgrade.show": {"lines": ["a key\x1b[2J", "another\rkey"]}}])
    assert shown["lines"] == ["a key?[2J", "another key"]


def test_a_run_of_many_lines_ends_when_their_reader_does(play: Shipped) -> None:
    playbook = play.folder / "many.yml"
    lines = {"lines": "{{ range(0, 30000) | map('string') | list }}"}
    tasks = [{"convoy.upgrade.show": lines}] * 2
    playbook.write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, "tasks": tasks}]))
    done = subprocess.run(
        f"{shlex.quote(str(Path(sys.executable).parent / 'ansible-playbook'))} many.yml | head -n 2; echo ended",
        shell=True,
        check=False,
        cwd=play.folder,
        env={**os.environ, "ANSIBLE_CALLBACK_PLUGINS": str(ROOT / "playbooks" / "callback_plugins")},
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert "The output was closed" in done.stderr
    assert done.stdout.endswith("ended\n")


def test_a_hold_without_a_reason_and_a_composition_without_roles_say_what_is_missing(
    play: Shipped, consul: RawKV
) -> None:
    seed(consul, names(web=2))
    held = play("hold", "-e", "host=web1")
    assert held.returncode == 2, held.stdout
    assert held.stdout.splitlines()[-1].endswith("-e host=web1 -e reason=WHY")
    composed = play("compose")
    assert "[bad_upgrade_roles] upgrade_roles: " in composed.stdout
    assert "is undefined" not in composed.stdout


def test_a_run_that_stops_says_what_comes_next(play: Shipped, consul: RawKV) -> None:
    seed(consul, names(compute=2))
    consul.put("upgrade/hold/role/compute", json.dumps({"reason": "disk swap", "by": "ann", "at": "today"}))
    done = play(
        "upgrade", "-e", "upgrade_consul_token=s3cret", version="2", instructions={"rolling_rules": {"global": 1}}
    )
    assert done.returncode == 2, done.stdout
    *_lines, step, then = done.stdout.splitlines()
    assert step.startswith("Next: ")
    assert shlex.split(step)[2].endswith("/playbooks/status.yml")
    assert step.endswith('-e upgrade_consul_token="$CONSUL_HTTP_TOKEN" -e host=compute1')
    assert then.startswith("Then: ")
    assert shlex.split(then)[2].endswith("/playbooks/upgrade.yml")
    assert "s3cret" not in step + then
