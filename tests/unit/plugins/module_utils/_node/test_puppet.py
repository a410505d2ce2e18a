# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Puppet's exit codes and locks, with a script in the place of Puppet. tests/nodes has the real one."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._node import puppet
from ansible_collections.convoy.upgrade.plugins.module_utils._node.puppet import PuppetOptions, disabled_for, run_puppet


@pytest.fixture(autouse=True)
def _no_locks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(puppet, "_LOCKS", (str(tmp_path / "lock"),))
    for users in ("_OWN_LOCK", "_USERS_LOCK"):
        monkeypatch.setattr(puppet, users, str(tmp_path / "own"))
    monkeypatch.setattr(puppet, "_SECONDS_BETWEEN_TRIES", 0.05)


def script(folder: Path, body: str) -> str:
    path = folder / "puppet"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def wish(folder: Path, body: str, **options: Any) -> PuppetOptions:
    return PuppetOptions(executable=script(folder, body), **{"manifest": "site.pp", **options})


@pytest.mark.parametrize(("code", "changed"), [(0, False), (2, True)])
def test_0_and_2_are_success(code: int, changed: bool, tmp_path: Path) -> None:
    done = run_puppet(wish(tmp_path, f"echo done; exit {code}"))
    assert (done.code, done.changed, done.output) == (code, changed, "done\n")


@pytest.mark.parametrize(
    ("code", "meaning"),
    [
        (1, "the run itself failed"),
        (4, "some resources failed"),
        (6, "some resources were changed and others failed"),
        (127, "an exit code that Puppet does not document"),
    ],
)
def test_all_other_codes_are_failures(code: int, meaning: str, tmp_path: Path) -> None:
    with pytest.raises(UpgradeError) as caught:
        run_puppet(wish(tmp_path, f"echo Notice: fine; echo Error: it broke; echo Notice: end; exit {code}"))
    assert caught.value.code == "puppet_failed"
    remedy = "Fix that in the manifests or on the host, then let the host try again."
    assert caught.value.message == f"puppet apply ended with {code}, {meaning}: Error: it broke. {remedy}"
    assert caught.value.details["exit_code"] == code


def test_without_an_error_line_the_last_lines_explain(tmp_path: Path) -> None:
    with pytest.raises(UpgradeError, match=r"the run itself failed: Notice: administratively disabled\. Fix that in"):
        run_puppet(wish(tmp_path, "echo Notice: administratively disabled; exit 1"))
    with pytest.raises(UpgradeError, match=r"the run itself failed: it printed nothing\. Fix that"):
        run_puppet(wish(tmp_path, "exit 1"))


def test_noop_changes_what_it_says_it_would(tmp_path: Path) -> None:
    assert run_puppet(wish(tmp_path, "echo 'File[/x]/ensure: should be file (noop)'", noop=True)).changed
    assert not run_puppet(wish(tmp_path, "echo Notice: Applied catalog", noop=True)).changed


def test_the_command_has_all_options() -> None:
    apply = PuppetOptions(
        manifest="site.pp", modulepath=["/a", "/b"], environment="canary", arguments=["--tags", "x"], noop=True
    )
    assert apply.command_line() == [
        *("apply", "--detailed-exitcodes", "--color=false", "--environment=canary", "--modulepath=/a:/b", "--noop"),
        *("--tags", "x", "site.pp"),
    ]
    agent = PuppetOptions(kind="agent").command_line()
    assert agent[:3] == ["agent", "--detailed-exitcodes", "--color=false"]
    assert {"--onetime", "--no-daemonize"} <= set(agent)


@pytest.mark.parametrize(
    ("environment", "version", "name"),
    [
        ("production", None, "production"),
        ("{version}", "v2", "v2"),
        ("release_{version}", "2.10", "release_2_10"),
        ("r{version}", "2.10~rc1+b-2", "r2_10_rc1_b_2"),
        ("{version}", "2.10é", "2_10_"),
    ],
)
def test_an_environment_may_be_that_of_the_version(environment: str, version: str | None, name: str) -> None:
    options = PuppetOptions(kind="agent", environment=environment, version=version)
    assert f"--environment={name}" in options.command_line()
    # Otherwise a server that names another environment for the node would bring it to another version.
    assert ("--strict_environment_mode" in options.command_line()) == ("{version}" in environment)
    apply = PuppetOptions(manifest="site.pp", environment=environment, version=version)
    assert "--strict_environment_mode" not in apply.command_line()


@pytest.mark.parametrize(
    ("environment", "version", "message"),
    [
        ("release-{version}", "2.10", "Puppet accepts no environment 'release-2_10': a name has letters, digits and _"),
        ("{version }", "2.10", "Puppet accepts no environment '{version }'"),
        ("a/../b", None, "Puppet accepts no environment 'a/../b'"),
        ("x\n", None, "Puppet accepts no environment 'x\\n'"),
        ("{version}", "main", "and is none of main, master, server, agent, user. Correct the setting."),
        (
            "release_{version}",
            None,
            "environment: release_{version} depends on the version, and this host has none yet.",
        ),
    ],
)
def test_an_environment_that_puppet_does_not_accept_is_refused(
    environment: str, version: str | None, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UpgradeError) as caught:
        run_puppet(wish(tmp_path, f"touch {tmp_path}/ran", environment=environment, version=version))
    assert caught.value.code == "bad_environment"
    assert message in caught.value.message
    assert not (tmp_path / "ran").exists()


def test_without_a_manifest_puppet_says_where_those_of_the_environment_are(tmp_path: Path) -> None:
    body = (
        'echo "$*" >>' + f"{tmp_path}/calls; "
        "[ $1 = config ] && { echo Warning: old; echo /code/environments/release_2_10/manifests; exit 0; }; exit 2"
    )
    done = run_puppet(wish(tmp_path, body, manifest=None, environment="release_{version}", version="2.10"))
    assert done.command[1:3] == ["apply", "--detailed-exitcodes"]
    assert done.command[-2:] == ["--environment=release_2_10", "/code/environments/release_2_10/manifests"]
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[0] == "config print manifest --environment=release_2_10"
    assert len(calls) == 2
    with pytest.raises(
        UpgradeError, match=r"does not say where the manifests are: Error: no such environment\. Set it\."
    ) as caught:
        run_puppet(wish(tmp_path, "echo Error: no such environment; exit 1", manifest=None))
    assert (caught.value.code, caught.value.details["exit_code"]) == ("puppet_failed", 1)


def test_an_agent_that_is_locked_out_tries_again(tmp_path: Path) -> None:
    body = f"[ -e {tmp_path}/free ] && exit 0; touch {tmp_path}/free; echo 'Notice: Run already in progress; skipping'; exit 1"
    done = run_puppet(wish(tmp_path, body, kind="agent", manifest=None))
    assert done.code == 0
    assert done.waited > 0


def test_it_waits_until_no_other_process_has_a_lock_of_the_package_manager(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(puppet, "_SECONDS_BETWEEN_RUNS", 0.1)
    says = "echo 'E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 7 (unattended-upgr)'; exit 4"
    body = f"[ -e {tmp_path}/free ] && exit 2; touch {tmp_path}/free; {says}"
    done = run_puppet(wish(tmp_path, body, lock_seconds=30))
    assert (done.code, done.changed, done.waited > 0) == (2, True, True)
    with pytest.raises(UpgradeError, match="Could not get lock") as caught:
        run_puppet(wish(tmp_path, says, lock_seconds=0.1))
    assert (caught.value.code, caught.value.details["exit_code"]) == ("puppet_locked", 4)


@pytest.mark.parametrize(
    ("reason", "runs", "error"),
    [
        # convoy-node was stopped at the moment at which Puppet began.
        ("convoy.upgrade: closed: convoy-node was stopped", 2, None),
        ("its disk", 1, "administratively disabled"),
    ],
)
def test_a_run_that_convoy_node_has_kept_out_as_it_began_runs_again(
    reason: str, runs: int, error: str | None, tmp_path: Path
) -> None:
    lock = tmp_path / "agent_disabled.lock"
    text = json.dumps({"disabled_message": reason})
    body = f"""echo run >>{tmp_path}/runs
[ "$(wc -l <{tmp_path}/runs)" = 1 ] && echo '{text}' | tr -d '\\n' >{lock}
[ -e {lock} ] || exit 0
echo 'Notice: Skipping run of Puppet configuration client; administratively disabled'
exit 1"""
    with nullcontext() if error is None else pytest.raises(UpgradeError, match=error):
        run_puppet(wish(tmp_path, body, kind="agent", manifest=None))
    assert (tmp_path / "runs").read_text().count("run") == runs
    # It is as it was before the second run.
    assert lock.read_text() == text


def test_an_agent_that_stays_locked_out_fails_when_its_time_is_up(tmp_path: Path) -> None:
    with pytest.raises(UpgradeError, match=r"has not ended within 0.2 s \(Notice: Run already in progress") as caught:
        run_puppet(wish(tmp_path, "echo 'Notice: Run already in progress'; exit 1", kind="agent", lock_seconds=0.2))
    assert caught.value.code == "puppet_locked"


def test_apply_waits_for_an_agent_that_lives_and_for_no_dead_one(tmp_path: Path) -> None:
    agent = subprocess.Popen(["bash", "-c", "exec -a puppet sleep 1"])
    while not Path(f"/proc/{agent.pid}/cmdline").read_bytes().startswith(b"puppet"):
        pass
    (tmp_path / "lock").write_text(f"{agent.pid}\n")
    with pytest.raises(UpgradeError, match=rf"within 0.1 s \(process {agent.pid} has the lock\)"):
        run_puppet(wish(tmp_path, "exit 0", lock_seconds=0.1))
    agent.wait()
    assert run_puppet(wish(tmp_path, "exit 0", lock_seconds=0.1)).waited < 0.1
    (tmp_path / "lock").write_text("nonsense")
    assert run_puppet(wish(tmp_path, "exit 0")).code == 0


def test_puppet_that_is_disabled_while_a_run_waits_does_not_run(tmp_path: Path) -> None:
    agent = subprocess.Popen(["bash", "-c", "exec -a puppet sleep 1"])
    while not Path(f"/proc/{agent.pid}/cmdline").read_bytes().startswith(b"puppet"):
        pass
    (tmp_path / "lock").write_text(f"{agent.pid}\n")
    threading.Timer(0.3, (tmp_path / "agent_disabled.lock").write_text, ["a new disk"]).start()
    with pytest.raises(UpgradeError, match="Puppet is disabled on this host: a new disk") as caught:
        run_puppet(wish(tmp_path, f"touch {tmp_path}/ran", lock_seconds=10))
    agent.wait()
    assert (caught.value.code, (tmp_path / "ran").exists()) == ("puppet_disabled", False)


def test_the_error_for_a_timeout_has_the_last_lines(tmp_path: Path) -> None:
    with pytest.raises(
        UpgradeError, match=r"took longer than 0.3 s and was ended; its last lines: begun\. Find out what hangs, or"
    ) as caught:
        run_puppet(wish(tmp_path, "echo begun; exec sleep 60", seconds=0.3))
    assert caught.value.code == "puppet_timeout"
    assert caught.value.details["exit_code"] is None


def test_a_missing_puppet_is_an_error() -> None:
    with pytest.raises(
        UpgradeError, match=r"executable: 'pupet' is neither on PATH nor in .*Install Puppet, or set executable\."
    ):
        run_puppet(PuppetOptions(executable="pupet", manifest="site.pp"))


def test_puppet_is_found_where_its_packages_put_it_if_path_does_not_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert puppet._PLACES.split(":", maxsplit=1)[0] == "/opt/puppetlabs/bin"
    monkeypatch.setattr(puppet, "_PLACES", f"{tmp_path}/missing:{tmp_path}")
    Path(script(tmp_path, "echo found")).rename(tmp_path / "a-puppet")
    assert run_puppet(PuppetOptions(executable="a-puppet", manifest="site.pp")).output == "found\n"


def test_a_run_whose_caller_was_killed_is_waited_for_until_puppet_itself_has_ended(tmp_path: Path) -> None:
    slow = script(tmp_path, f"touch {tmp_path}/begun; sleep 1.5; touch {tmp_path}/ended")
    code = (
        "import sys; from ansible_collections.convoy.upgrade.plugins.module_utils._node import puppet; "
        "puppet._OWN_LOCK = puppet._USERS_LOCK = sys.argv[1]; puppet.run_puppet(puppet.PuppetOptions(executable=sys.argv[2], manifest='site.pp'))"
    )
    caller = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "own"), slow])
    while not (tmp_path / "begun").exists():
        assert caller.poll() is None
    caller.kill()
    caller.wait()
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(UpgradeError, match=r"within 0.2 s \(.*own is locked\)"):
        run_puppet(wish(other, "exit 0", lock_seconds=0.2))
    assert not (tmp_path / "ended").exists()
    done = run_puppet(wish(other, f"[ -e {tmp_path}/ended ]"))
    assert done.code == 0
    assert done.waited > 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"disabled_message":"its disk is being replaced"}', "its disk is being replaced"),
        ('{"disabled_message":"reason not specified"}', "reason not specified"),
        ('{"disabled_message":"two\\nlines \\u001b[2J"}', "two lines ?[2J"),
        ("written by hand", "written by hand"),
        ("", "reason not specified"),
        ("{}", "reason not specified"),
        ("[" * 9000, "[" * 329 + " ... " + "[" * 166),
    ],
)
@pytest.mark.parametrize("kind", ["apply", "agent"])
def test_a_disabled_puppet_is_not_run_and_the_error_has_the_reason(
    kind: str, text: str, reason: str, tmp_path: Path
) -> None:
    assert disabled_for() is None
    (tmp_path / "agent_disabled.lock").write_text(text)
    assert disabled_for() == reason
    with pytest.raises(UpgradeError) as caught:
        run_puppet(wish(tmp_path, f"touch {tmp_path}/ran", kind=kind, noop=True))
    assert caught.value.code == "puppet_disabled"
    assert caught.value.message.startswith(f"Puppet is disabled on this host: {reason}. Nothing was run.")
    assert not (tmp_path / "ran").exists()


def test_a_lock_of_puppet_that_can_not_be_read_disables_it_too(tmp_path: Path) -> None:
    (tmp_path / "agent_disabled.lock").mkdir()
    assert disabled_for() == f"{tmp_path}/agent_disabled.lock can't be read: Is a directory"
