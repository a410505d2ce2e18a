# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""puppet on nodes with the real Puppet, among the steps of a service whose configuration it writes."""

from __future__ import annotations

import pytest
from lab.packages import Package, repository

from .conftest import MakeSteps
from .snapshots import installed, use_version
from .steps import STEPS, Steps

MANIFESTS = "/usr/share/fleet/manifests"
MANIFEST = """\
file { '/etc/fleet.conf':
  content => "version=${facts['convoy_version']} manifest=%s\\n",
}
"""
CHECK = """\
#!/bin/sh
grep -q "version=v2 manifest=v2" /etc/fleet.conf || { echo "fleet.conf is not that of v2"; exit 1; }
"""
SETTINGS = {
    "puppet_manifest": f"{MANIFESTS}/site.pp",
    "puppet_packages": ["fleet-manifests"],
    "puppet_validation_dir": "/etc/convoy/validation.d",
}


@pytest.fixture(scope="module")
def steps(make_steps: MakeSteps) -> Steps:
    """A node on which Puppet has applied the manifests of v1."""
    steps = make_steps({"web1": "web"})
    for version in ("v1", "v2"):
        package = Package("fleet-manifests", f"{version[1:]}.0", {f"{MANIFESTS}/site.pp": MANIFEST % version})
        repository(steps.lab.shared / version, [package])
    node = steps.lab.nodes["web1"]
    node.write("/etc/convoy/validation.d/10-fleet", CHECK, 0o755)
    use_version(node, "v1")
    node.run("apt-get", "-q", "-y", "install", "fleet-manifests")
    return steps


def run(steps: Steps, *which: str, code: int = 0, arguments: tuple[str, ...] = (), **more: object) -> str:
    shown = steps.run("puppet", which or STEPS, ["web1"], {**SETTINGS, **more}, *arguments, code=code)
    return " ".join(shown.split())


def conf(steps: Steps) -> str | None:
    return steps.lab.nodes["web1"].read("/etc/fleet.conf")


@pytest.mark.thorough
def test_puppet_runs_with_the_version_and_the_manifests_that_came_with_it(steps: Steps) -> None:
    run(steps, "validate", "upgrade", upgrade_version="v1")
    assert conf(steps) == "version=v1 manifest=v1\n"
    use_version(steps.lab.nodes["web1"], "v2")
    run(steps)
    assert installed(steps.lab.nodes["web1"], "fleet-manifests") == "2.0"
    assert conf(steps) == "version=v2 manifest=v2\n"


@pytest.mark.thorough
def test_a_second_run_changes_nothing(steps: Steps) -> None:
    assert "changed=0 " in run(steps)


@pytest.mark.thorough
def test_check_mode_reports_what_puppet_would_do_and_does_not_do_it(steps: Steps) -> None:
    steps.lab.nodes["web1"].write("/etc/fleet.conf", "by hand\n")
    assert "changed=1 " in run(steps, arguments=("--check",))
    assert conf(steps) == "by hand\n"


@pytest.mark.thorough
def test_a_host_that_is_not_well_is_reported_in_a_sentence(steps: Steps) -> None:
    assert "fleet.conf is not that of v2" in run(steps, "verify", code=2)
    run(steps)
    assert conf(steps) == "version=v2 manifest=v2\n"


@pytest.mark.thorough
def test_what_cannot_run_is_refused_before_anything_is_touched(steps: Steps) -> None:
    shown = run(steps, "validate", code=2, puppet_executable="/opt/none/puppet")
    assert "web1: '/opt/none/puppet --version' fails:" in shown
    shown = run(steps, "validate", code=2, puppet_manifest="/nowhere", puppet_packages=[])
    assert "web1: there are no manifests at /nowhere, so Puppet would have nothing to apply." in shown


@pytest.mark.thorough
def test_puppet_that_is_disabled_after_the_checks_keeps_its_packages(steps: Steps) -> None:
    node = steps.lab.nodes["web1"]
    use_version(node, "v1")
    node.run("apt-get", "-q", "-y", "--allow-downgrades", "install", "fleet-manifests=1.0")
    use_version(node, "v2")
    node.run("puppet", "agent", "--disable", "its disk is being replaced")
    try:
        run(steps, "validate")
        # Nothing is stopped before may_stop succeeds. All services of the host are stopped before the step upgrade.
        shown = run(steps, "may_stop", code=2)
        assert (
            "web1: Puppet is disabled: its disk is being replaced. Every service still runs, and no package was"
            in shown
        )
        shown = run(steps, "upgrade", code=2)
        assert "web1: Puppet is disabled: its disk is being replaced. Services of this host may be stopped" in shown
        assert "touched" not in shown
        assert installed(node, "fleet-manifests") == "1.0"
    finally:
        node.run("puppet", "agent", "--enable")
    run(steps)
    assert installed(node, "fleet-manifests") == "2.0"


@pytest.mark.thorough
def test_a_manifest_that_fails_is_reported_in_a_sentence(steps: Steps) -> None:
    steps.lab.nodes["web1"].write("/root/broken.pp", "exec { '/bin/false': }\n")
    shown = run(steps, "upgrade", code=2, puppet_manifest="/root/broken.pp")
    assert "'/bin/false' returned 1" in shown
