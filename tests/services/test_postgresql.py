# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""postgresql: two real clusters of Debian's PostgreSQL, each a host's own, and at the end a primary and its standby."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab.node import Node
from lab.packages import Package, repository

from .conftest import MakeSteps
from .databases import SWITCH, UNIT, create, replicate, sql, wait_for
from .snapshots import installed, publish, use_version
from .steps import STEPS, Steps, one_line

ROWS = 1000
SERVER = "postgresql-15"
PACKAGES = [SERVER, "postgresql-client-15"]
MIGRATION = "ALTER TABLE accounts ADD COLUMN email text;\nINSERT INTO made VALUES ('{{ not a template }}');\n"


@pytest.fixture(scope="module")
def steps(make_steps: MakeSteps) -> Steps:
    """Two hosts with a database that has rows, and a snapshot v2 of their packages."""
    steps = make_steps({"db1": "database", "db2": "database"}, packages=[SERVER])
    publish(steps.lab, PACKAGES)
    for node in steps.lab.nodes.values():
        create(node)
        sql(node, "CREATE DATABASE shop")
        sql(
            node,
            f"CREATE TABLE accounts AS SELECT generate_series(1, {ROWS}) AS id; CREATE TABLE made (what text)",
            "shop",
        )
        use_version(node, "v2")
    (steps.folder / "migrations").mkdir()
    (steps.folder / "migrations/v2.sql").write_text(MIGRATION)
    return steps


@pytest.fixture
def session(steps: Steps) -> Iterator[subprocess.Popen[str]]:
    """Somebody who is connected, and does nothing."""
    command = steps.lab.nodes["db1"].command("runuser", "-u", "postgres", "--", "psql", "-d", "shop")
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as open_one:
        yield open_one
        assert open_one.stdin is not None
        open_one.stdin.close()


def run(steps: Steps, hosts: list[str], *which: str, code: int = 0, check: bool = False, **more: Any) -> str:
    settings = {
        "postgresql_major": 15,
        "postgresql_migration_file": "migrations/{{ upgrade_version }}.sql",
        "postgresql_migration_database": "shop",
        "postgresql_verify_queries": [{"database": "shop", "query": f"SELECT count(*) = {ROWS} FROM accounts"}],
        "postgresql_start_timeout": 20,
        **more,
    }
    return one_line(
        steps.run("postgresql", which or STEPS, hosts, settings, *(["--check"] if check else []), code=code)
    )


@pytest.mark.thorough
def test_the_hosts_are_upgraded_and_one_changes_the_schema(steps: Steps, session: subprocess.Popen[str]) -> None:
    nodes = steps.lab.nodes
    assert session.poll() is None
    before = installed(nodes["db1"], SERVER)
    run(steps, ["db1", "db2"], check=True)
    assert installed(nodes["db1"], SERVER) == before
    assert sql(nodes["db1"], "SELECT count(*) FROM made", "shop") == "0"
    run(steps, ["db1", "db2"])
    for node in nodes.values():
        assert [installed(node, name).endswith("+v2") for name in PACKAGES] == [True, True]
        assert sql(node, "SELECT count(*) FROM accounts", "shop") == str(ROWS)
    assert sql(nodes["db1"], "SELECT * FROM made", "shop") == "{{ not a template }}"
    assert sql(nodes["db2"], "SELECT count(*) FROM made", "shop") == "0"
    assert sql(nodes["db1"], "SELECT version FROM convoy_migrations", "shop") == "v2"


@pytest.mark.thorough
def test_a_second_run_changes_no_schema_and_loses_nothing(steps: Steps) -> None:
    node = steps.lab.nodes["db1"]
    run(steps, ["db1"])
    assert sql(node, "SELECT count(*) FROM made", "shop") == "1"
    assert sql(node, "SELECT count(*) FROM accounts", "shop") == str(ROWS)


@pytest.mark.thorough
def test_one_that_an_earlier_upgrade_has_left_stopped_is_upgraded(steps: Steps) -> None:
    node = steps.lab.nodes["db1"]
    run(steps, ["db1"], "prepare")
    node.run("systemctl", "stop", "postgresql@15-main")
    assert "PostgreSQL on port 5432 takes no connections" in run(steps, ["db1"], "validate", code=2)
    later = ("prepare", "may_stop", "drain", "stop", "upgrade", "start", "verify")
    switch = {
        "postgresql_switchover_command": ["false"],
        "postgresql_migration_file": "",
        "postgresql_standbys_needed": 1,
    }
    assert "an earlier upgrade has left PostgreSQL stopped" in run(steps, ["db1"], *later, **switch)
    assert sql(node, "SELECT count(*) FROM accounts", "shop") == str(ROWS)
    # One that stops after an upgrade was not stopped by it.
    node.run("systemctl", "stop", "postgresql@15-main")
    assert "can't query the cluster on port 5432" in run(steps, ["db1"], "prepare", code=2)
    node.run("systemctl", "start", "postgresql@15-main")


@pytest.mark.thorough
def test_a_change_that_fails_leaves_the_schema_as_it_was(steps: Steps) -> None:
    node = steps.lab.nodes["db1"]
    (steps.folder / "migrations/v3.sql").write_text("INSERT INTO made VALUES ('half');\nSELECT no_such_function();\n")
    shown = run(steps, ["db1"], "start", code=2, upgrade_version="v3")
    assert "db1: the schema of shop could not be migrated to v3 with " in shown
    assert "function no_such_function() does not exist" in shown
    assert "The schema is unchanged." in shown
    assert sql(node, "SELECT count(*) FROM made", "shop") == "1"
    (steps.folder / "migrations/v3.sql").write_text("INSERT INTO made VALUES ('whole');\n")
    run(steps, ["db1"], "start", upgrade_version="v3")
    assert sql(node, "SELECT count(*) FROM made", "shop") == "2"
    (steps.folder / "migrations/v4.sql").write_text(
        "ALTER TABLE made ADD COLUMN at text;\n\tcommit work ;\nSELECT 1;\n"
    )
    shown = run(steps, ["db1"], "validate", code=2, upgrade_version="v4")
    assert "db1: migrations/v4.sql has 'commit work ;', and it is one transaction together with" in shown
    function = (
        "CREATE FUNCTION one() RETURNS int AS $$\nBEGIN\n  RETURN 1;\nEND;\n$$ LANGUAGE plpgsql;\nROLLBACK TO kept;\n"
    )
    (steps.folder / "migrations/v4.sql").write_text(function)
    run(steps, ["db1"], "validate", upgrade_version="v4")
    run(steps, ["db1"], "start", postgresql_migration_file="", postgresql_migration_command=["touch", "/root/migrated"])
    assert node.read("/root/migrated") == ""


@pytest.mark.thorough
def test_a_library_that_was_replaced_is_loaded_again(steps: Steps) -> None:
    node = steps.lab.nodes["db1"]
    plain = {"postgresql_migration_file": ""}
    sql(node, "ALTER SYSTEM SET shared_preload_libraries = 'auto_explain'")
    node.run("systemctl", "restart", "postgresql@15-main")
    sql(node, "CREATE DATABASE gone")
    run(steps, ["db1"], "prepare", **plain)
    library = "/usr/lib/postgresql/15/lib/auto_explain.so"
    node.run("sh", "-c", f"cp -p {library} {library}.new && mv {library}.new {library}")
    assert "db1: PostgreSQL still runs from packages that were replaced." in run(
        steps, ["db1"], "verify", code=2, **plain
    )
    # What was dropped before the restart is not lost by it.
    sql(node, "DROP DATABASE gone")
    run(steps, ["db1"], "start", **plain)
    run(steps, ["db1"], "verify", **plain)
    sql(node, "ALTER SYSTEM RESET shared_preload_libraries")
    node.run("systemctl", "restart", "postgresql@15-main")


@pytest.mark.thorough
def test_another_major_version_is_refused_before_a_package_is_replaced(steps: Steps) -> None:
    node = steps.lab.nodes["db1"]
    offered = {"postgresql-16": "16.1-1", "fleet-postgresql": "16.1-1", "fleet-extension": "3.4-1"}
    repository(steps.lab.shared / "v16", [Package(name, version) for name, version in offered.items()])
    repository(steps.lab.shared / "v15", [Package("fleet-postgresql", "15.1-1"), Package("fleet-extension", "3.3-1")])
    use_version(node, "v15")
    node.run("apt-get", "install", "--yes", "fleet-extension")
    use_version(node, "v16")
    other = {"postgresql_unit": "postgresql@15-main.service", "postgresql_packages": ["postgresql-16"]}
    shown = run(steps, ["db1"], "validate", code=2, postgresql_major=16, **other)
    assert "db1: PostgreSQL 15 runs on port 5432, and postgresql_major is 16." in shown
    for step in ("validate", "upgrade"):
        shown = run(steps, ["db1"], step, code=2, postgresql_packages=["fleet-postgresql"])
        assert "would bring another major version of PostgreSQL than 15, which has the data: fleet-postgresql" in shown
    assert sql(node, "SELECT 1") == "1"
    # An extension has versions of its own.
    run(steps, ["db1"], "validate", postgresql_packages=["fleet-extension"])
    use_version(node, "v2")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("step", "settings", "sentence"),
    [
        ("validate", {"postgresql_major": 0}, "db1: postgresql_major is not set"),
        ("validate", {"postgresql_port": 5433}, "db1: PostgreSQL on port 5433 takes no connections: nothing answers."),
        (
            "validate",
            {"postgresql_user": "nobody"},
            "db1: the user nobody can't query the cluster on port 5432: psql: error:",
        ),
        # It only starts the units of Debian's clusters.
        (
            "validate",
            {"postgresql_unit": "postgresql.service"},
            " does not run in postgresql.service, so a restart of ",
        ),
        ("validate", {"postgresql_migration_file": "/nowhere.sql"}, "there is no such file on the control node."),
        (
            "verify",
            {"postgresql_verify_queries": [{"database": "shop", "query": "SELECT count(*) = 7 FROM accounts"}]},
            "db1: 'SELECT count(*) = 7 FROM accounts' in shop gives f instead of 't'.",
        ),
    ],
)
def test_what_is_not_as_it_should_be_is_reported(
    steps: Steps, step: str, settings: dict[str, Any], sentence: str
) -> None:
    assert sentence in run(steps, ["db1"], step, code=2, **settings)


@pytest.mark.thorough
def test_a_database_that_is_gone_is_reported(steps: Steps, tmp_path: Path) -> None:
    del tmp_path
    node = steps.lab.nodes["db2"]
    run(steps, ["db2"], "prepare")
    sql(node, "DROP DATABASE shop")
    shown = run(steps, ["db2"], "verify", code=2)
    assert "db2: the databases shop are gone." in shown
    assert "If a migration or a client has dropped or renamed them on purpose, delete " in shown


@pytest.fixture(scope="module")
def pair(steps: Steps) -> tuple[Node, Node]:
    """A primary, db1, and its standby, db2. The tests before have both as primaries."""
    primary, standby = steps.lab.nodes["db1"], steps.lab.nodes["db2"]
    replicate(primary, standby)
    wait_for(primary, "SELECT state FROM pg_stat_replication", "streaming")
    return primary, standby


@pytest.mark.thorough
def test_a_standby_is_upgraded_once_it_streams_again(steps: Steps, pair: tuple[Node, Node]) -> None:
    primary, standby = pair
    plain = {"postgresql_migration_file": "", "postgresql_start_timeout": 5}
    run(steps, ["db2"], **plain)
    assert sql(standby, "SELECT status FROM pg_stat_wal_receiver") == "streaming"
    primary.run("systemctl", "stop", UNIT)
    shown = run(steps, ["db2"], "verify", code=2, **plain)
    assert "db2: this standby does not stream from its primary within 5 s" in shown
    assert "its WAL receiver is missing. Check that the primary runs, and check primary_conninfo" in shown
    # Without a primary to stream from, it replays archived WAL, and is not waited for.
    conninfo = sql(standby, "SHOW primary_conninfo").replace("'", "''")
    sql(standby, "ALTER SYSTEM SET primary_conninfo = ''")
    sql(standby, "SELECT pg_reload_conf()")
    wait_for(standby, "SHOW primary_conninfo", "")
    run(steps, ["db2"], "verify", **plain)
    sql(standby, f"ALTER SYSTEM SET primary_conninfo = '{conninfo}'")
    primary.run("systemctl", "start", UNIT)
    sql(standby, "SELECT pg_reload_conf()")
    wait_for(standby, "SELECT status FROM pg_stat_wal_receiver", "streaming")


@pytest.mark.thorough
def test_a_synchronous_standby_stops_only_if_another_one_can_take_its_place(
    steps: Steps, pair: tuple[Node, Node]
) -> None:
    primary, standby = pair
    needed = {"postgresql_synchronous_needed": 1}

    def check(*, code: int = 0, host: str = "db2", **settings: Any) -> str:
        # Other services may have waited long in drain between these two.
        return " ".join(run(steps, [host], step, code=code, **settings) for step in ("may_stop", "stop"))

    check(**needed)
    sql(primary, "ALTER SYSTEM SET synchronous_standby_names = '*'")
    sql(primary, "SELECT pg_reload_conf()")
    wait_for(primary, "SELECT sync_state FROM pg_stat_replication", "sync")
    refused = "commits on the primary wait for this synchronous standby, 0 others can take its place"
    assert check(code=2, **needed).count(f"db2: {refused}") >= 2
    check()
    check(host="db1", **needed)
    source = f"host={primary.address} user=postgres application_name=other"
    other = ("runuser", "-u", "postgres", "--", "pg_receivewal", "--synchronous", "-D", "/tmp", "-d", source)
    with subprocess.Popen(standby.command(*other), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as receiver:
        wait_for(
            primary,
            "SELECT string_agg(sync_state, ' ' ORDER BY sync_state) FROM pg_stat_replication WHERE state = 'streaming'",
            "potential sync",
        )
        check(**needed)
        assert "1 others can take its place" in check(code=2, postgresql_synchronous_needed=2)
        standby.run("pkill", "-x", "pg_receivewal")
        receiver.wait()
    wait_for(primary, "SELECT count(*) FROM pg_stat_replication", "1")

    # Without the rights to see it, or without the primary, it is not known.
    sql(primary, "CREATE ROLE replicator LOGIN REPLICATION")
    conninfo = sql(standby, "SHOW primary_conninfo").replace("'", "''")
    limited = f"user=replicator host={primary.address} application_name=''db 2''"
    sql(standby, f"ALTER SYSTEM SET primary_conninfo = '{limited}'")
    sql(standby, "SELECT pg_reload_conf()")
    wait_for(primary, "SELECT application_name FROM pg_stat_replication", "db 2")
    assert "the user of primary_conninfo is not allowed to see that. Let that user connect" in check(code=2, **needed)
    sql(primary, "GRANT pg_monitor TO replicator")
    assert refused in check(code=2, **needed)
    primary.run("systemctl", "stop", UNIT)
    shown = check(code=2, **needed)
    assert "db2: this standby can't ask its primary which standbys are synchronous, so it is not taken down: " in shown
    assert "Connection refused" in shown

    sql(standby, f"ALTER SYSTEM SET primary_conninfo = '{conninfo}'")
    sql(standby, "SELECT pg_reload_conf()")
    primary.run("systemctl", "start", UNIT)
    sql(primary, "ALTER SYSTEM RESET synchronous_standby_names")
    sql(primary, "SELECT pg_reload_conf()")
    wait_for(standby, "SELECT status FROM pg_stat_wal_receiver", "streaming")


@pytest.mark.thorough
def test_a_primary_is_switched_over_only_to_a_standby_that_streams(steps: Steps, pair: tuple[Node, Node]) -> None:
    primary, standby = pair
    switch = {"postgresql_migration_file": "", "postgresql_switchover_command": [SWITCH]}
    failing = {**switch, "postgresql_switchover_command": ["false"]}
    # What an earlier use on the host has left.
    shown = run(steps, ["db1"], "drain", code=2, postgresql_role={"stdout": "f"}, **failing)
    assert "db1: this primary could not be switched over, and still runs: exit status 1." in shown
    wait_for(primary, "SELECT state FROM pg_stat_replication", "streaming")

    standby.run("systemctl", "stop", UNIT)
    # A backup is a client of the replication too.
    backup = ("pg_basebackup", "-U", "postgres", "-h", primary.address, "-D", "/tmp/backup", "--max-rate=32k")
    with subprocess.Popen(standby.command(*backup), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
        # One connection sends the data, another one streams WAL.
        wait_for(primary, "SELECT string_agg(state, ' ' ORDER BY state) FROM pg_stat_replication", "backup streaming")
        # Other services may have waited long in drain between these two.
        for step in ("may_stop", "stop"):
            shown = run(steps, ["db1"], step, code=2, **switch)
            assert (
                "db1: 0 standbys are at most 1 MiB behind this primary, and postgresql_standbys_needed is 1." in shown
            )
        shown = run(steps, ["db1"], "drain", code=2, **switch)
        assert "db1: no standby streams from this primary, so it can't be switched over, and still runs." in shown
        run(steps, ["db1"], "may_stop", "drain", "stop", postgresql_standbys_needed=0, **failing)
        sql(primary, "SELECT pg_terminate_backend(pid) FROM pg_stat_replication")
    assert sql(primary, "SELECT pg_is_in_recovery()") == "f"

    standby.run("systemctl", "start", UNIT)
    wait_for(primary, "SELECT state FROM pg_stat_replication", "streaming")
    run(steps, ["db1"], **switch)
    assert sql(standby, "SELECT pg_is_in_recovery()") == "f"
    assert sql(primary, "SELECT status FROM pg_stat_wal_receiver") == "streaming"
