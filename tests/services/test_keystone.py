# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""keystone on two nodes that share a database: one is upgraded, while the other answers."""

from __future__ import annotations

import pytest

from .conftest import MakeSteps
from .keystones import ALL_PACKAGES, PACKAGES, Keystones, call, client, login, publish_next
from .snapshots import installed, use_version
from .steps import POST, STEPS, Steps

BOTH = ("keystone1", "keystone2")
OLD = {"27e647c0fad4"}
CONTRACTED = {"a00000000001", "c00000000001"}


@pytest.fixture(scope="module")
def steps(make_steps: MakeSteps) -> Steps:
    """Two nodes for Keystone, and one for its database; the next release of Keystone is there."""
    roles = {"keystone1": "controller", "keystone2": "controller", "database1": "database"}
    steps = make_steps(roles, packages=ALL_PACKAGES)
    publish_next(steps.lab)
    return steps


@pytest.fixture(scope="module")
def keystones(steps: Steps) -> Keystones:
    """Keystones that run, whose package would migrate the database by itself."""
    keystones = Keystones(steps.lab)
    for node in keystones.nodes:
        node.run("sh", "-c", "echo keystone keystone/configure_db boolean true | debconf-set-selections")
        use_version(node, "v2")
    call(keystones.nodes[0], "projects", {"project": {"name": "kept"}}, login(keystones.nodes[0]))
    return keystones


def run(steps: Steps, which: tuple[str, ...], *hosts: str, code: int = 0, check: bool = False, **more: object) -> str:
    arguments = ["--check"] if check else []
    # The engine has one host per version do it, of all that there are.
    shown = steps.run("keystone", which, hosts, {"steps_once": "keystone1", **more}, *arguments, code=code)
    return " ".join(shown.split())


@pytest.mark.thorough
def test_check_mode_changes_nothing(steps: Steps, keystones: Keystones) -> None:
    before = installed(keystones.nodes[0], "keystone")
    run(steps, (*STEPS, POST), *BOTH, check=True)
    assert installed(keystones.nodes[0], "keystone") == before
    assert keystones.revisions() == OLD


@pytest.mark.thorough
def test_what_is_not_there_is_refused_before_anything_is_touched(steps: Steps, keystones: Keystones) -> None:
    shown = run(steps, ("validate",), "keystone1", code=2, keystone_config="/nowhere")
    assert "keystone1: the user keystone can't read /nowhere. Correct its owner and its mode" in shown
    keystones.sql("alter role keystone nologin")
    shown = run(steps, ("validate",), "keystone1", code=2)
    assert "keystone1: 'keystone-manage db_sync --check' ended with 1:" in shown
    assert 'role "keystone" is not permitted to log in' in shown
    keystones.sql("alter role keystone login")


@pytest.mark.thorough
def test_a_migration_that_fails_is_reported_in_a_sentence_and_the_other_host_goes_on(
    steps: Steps, keystones: Keystones
) -> None:
    keystones.sql("alter table lab_runs owner to postgres")
    with client(keystones.nodes[1]) as seen:
        shown = run(steps, ("validate", "prepare", "stop", "upgrade"), "keystone1", code=2)
    assert "keystone1: 'keystone-manage db_sync --expand' ended with 1:" in shown
    assert "permission denied for table lab_runs" in shown
    assert set(seen) == {"ok"}
    keystones.sql("alter table lab_runs owner to keystone")


@pytest.mark.thorough
def test_the_first_host_expands_the_schema_while_the_other_answers(steps: Steps, keystones: Keystones) -> None:
    first, second = keystones.nodes
    # Run whole again, after the failure in its middle.
    with client(second) as seen:
        run(steps, STEPS, "keystone1")
    assert set(seen) == {"ok"}
    assert len(seen) > 20
    assert [installed(first, name).endswith("+v2") for name in PACKAGES] == [True, True]
    assert not installed(second, "keystone").endswith("+v2")
    assert "processes = 2\n" in (first.read("/etc/keystone/keystone-uwsgi.ini") or "")
    # Expanded, and not contracted, though the package would have done both.
    assert keystones.runs() == ["expand|keystone1"]
    assert keystones.revisions() == {"a00000000001"}
    assert keystones.sql("select count(*) from lab_old") == ["0"]


@pytest.mark.thorough
def test_a_host_of_the_old_version_is_not_refused_because_the_schema_is_ahead(
    steps: Steps, keystones: Keystones
) -> None:
    assert not installed(keystones.nodes[1], "keystone").endswith("+v2")
    run(steps, ("validate",), *BOTH)


@pytest.mark.thorough
def test_the_second_host_does_not_run_the_migrations_again(steps: Steps, keystones: Keystones) -> None:
    first, second = keystones.nodes
    with client(first) as seen:
        run(steps, STEPS, "keystone2")
    assert set(seen) == {"ok"}
    assert installed(second, "keystone").endswith("+v2")
    assert keystones.runs() == ["expand|keystone1"]


@pytest.mark.thorough
def test_one_host_contracts_the_schema_after_the_last_of_the_old_ones(steps: Steps, keystones: Keystones) -> None:
    with client(keystones.nodes[1]) as seen:
        run(steps, (POST,), *BOTH)
    assert set(seen) == {"ok"}
    assert keystones.runs() == ["expand|keystone1", "contract|keystone1"]
    assert keystones.revisions() == CONTRACTED
    assert keystones.sql("select to_regclass('lab_old') is null") == ["t"]


@pytest.mark.thorough
def test_a_second_run_leaves_it_as_it_is(steps: Steps, keystones: Keystones) -> None:
    shown = run(steps, (*STEPS, POST), *BOTH)
    # They are stopped and started again, and that is all.
    assert shown.count("changed=2 ") == 2
    assert keystones.runs() == ["expand|keystone1", "contract|keystone1"]
    for node in keystones.nodes:
        _status, _headers, found = call(node, "projects", token=login(node))
        assert {one["name"] for one in found["projects"]} == {"admin", "kept"}


@pytest.mark.thorough
def test_a_host_that_does_not_answer_is_reported_in_a_sentence(steps: Steps, keystones: Keystones) -> None:
    shown = run(
        steps,
        ("verify",),
        "keystone1",
        code=2,
        keystone_url="http://127.0.0.1:5001/v3",
        keystone_verify_timeout=1,
    )
    assert "keystone1: http://127.0.0.1:5001/v3 does not answer with Keystone's version:" in shown
    keystones.sql("alter table local_user rename to gone")
    shown = run(steps, ("verify",), "keystone1", code=2)
    assert "/v3/auth/tokens does not refuse a user who does not exist with 401, so Keystone can't read" in shown
    keystones.sql("alter table gone rename to local_user")
    run(steps, ("verify",), "keystone1")
