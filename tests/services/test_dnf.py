# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""package_service on a node with Debian's dnf, a repository of RPM packages, and the files of an EL system by which Ansible chooses dnf."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from lab.node import Node
from push.site import Site

from .conftest import MakeSteps
from .steps import STEPS, Steps, one_line

SETTINGS = {
    "package_service_packages": ["beacon"],
    "package_service_units": ["beacon.service"],
    "package_service_verify_timeout": 5,
}
SPEC = """\
Name: beacon
Version: {version}
Release: 1
Summary: A service of the lab
License: GPL-3.0-or-later
BuildArch: noarch
AutoReqProv: no
# No other package of the repository has it.
Provides: /bin/sh
%description
A service of the lab.
%install
mkdir -p %{{buildroot}}/usr/local/sbin %{{buildroot}}/etc/systemd/system
printf '#!/bin/sh\\n# version {version}\\nexec sleep infinity\\n' >%{{buildroot}}/usr/local/sbin/beacon
printf '[Service]\\nExecStart=/usr/local/sbin/beacon\\n' >%{{buildroot}}/etc/systemd/system/beacon.service
head -c {size} /dev/urandom >%{{buildroot}}/usr/local/sbin/beacon.data
%postun
# What scripts of Red Hat 8 do, and those of Red Hat 9, which mark units for a restart at the end of the transaction.
systemctl daemon-reload
systemctl try-restart beacon.service other.service
systemctl set-property beacon.service Markers=+needs-restart
systemctl reload-or-restart --marked
%files
%attr(755, root, root) /usr/local/sbin/beacon
/usr/local/sbin/beacon.data
/etc/systemd/system/beacon.service
"""
REPOSITORY = "/var/lib/lab-rpm"
METADATA_LOCK = "/var/cache/dnf/metadata_lock.pid"


def publish(node: Node, version: str, *, name: str = "beacon", is_known: bool = True, size: int = 0) -> None:
    """Add a version to the repository of a node.

    :param name: the package.
    :param is_known: whether dnf reads the metadata of the repository again when it runs next.
    :param size: how much data it has that can't be compressed (bytes).
    """
    node.write("/root/lab.spec", SPEC.format(version=version, size=size).replace("beacon", name))
    node.run("rpmbuild", "-bb", "--define", f"_rpmdir {REPOSITORY}", "/root/lab.spec")
    node.run("createrepo_c", "--quiet", REPOSITORY)
    if is_known:
        node.run("dnf", "--quiet", "clean", "metadata")


def withdraw(node: Node, version: str) -> None:
    """Remove a version from the repository of a node; ``*`` for all."""
    node.run("sh", "-c", f"mv {REPOSITORY}/noarch/beacon-{version}-1.noarch.rpm /root")
    node.run("createrepo_c", "--quiet", REPOSITORY)
    node.run("dnf", "--quiet", "clean", "metadata")


def installed(node: Node, name: str = "beacon") -> str:
    """Return the version of a package on a node."""
    return node.run("rpm", "--query", "--queryformat", "%{VERSION}", name).stdout


def offered(node: Node) -> str:
    """Return the newest version that dnf knows of the repository."""
    query = ("repoquery", "--latest-limit=1", "--queryformat", "%{version}", "beacon")
    return node.run("dnf", "--quiet", *query).stdout.strip()


def process(node: Node, unit: str = "beacon") -> str:
    """Return the ID of the process of a unit; 0 for none."""
    return node.run("systemctl", "show", "--property=MainPID", "--value", unit).stdout.strip()


def is_active(node: Node) -> bool:
    """Return whether the service runs."""
    return node.run("systemctl", "is-active", "beacon", check=False).stdout == "active\n"


def cached(node: Node) -> list[str]:
    """Return the packages that dnf has downloaded."""
    return node.run("find", "/var/cache/dnf", "-name", "*.rpm", "-printf", "%f\\n").stdout.split()


@pytest.fixture(scope="module")
def steps(make_steps: MakeSteps) -> Steps:
    """A node on which version 1 runs."""
    steps = make_steps({"web1": "web"}, packages=["dnf", "dnf-plugins-core", "rpm", "createrepo-c"])
    node = steps.lab.nodes["web1"]
    node.write("/etc/redhat-release", "Rocky Linux release 9.4 (Blue Onyx)\n")
    # A repository that dnf has to copy from, as it uses the packages behind file: where they are.
    node.write(
        "/etc/systemd/system/lab-rpm.service",
        f"[Service]\nExecStart=/usr/bin/python3 -m http.server --bind 127.0.0.1 --directory {REPOSITORY} 8080\n",
    )
    node.write(
        "/etc/yum.repos.d/lab.repo",
        "[lab]\nname=lab\nbaseurl=http://127.0.0.1:8080\ngpgcheck=0\nmetadata_expire=0\n",
    )
    # Of the plugins that Debian has in one package, only the one for locks.
    node.write("/etc/dnf/plugins/local.conf", "[main]\nenabled=0\n")
    node.write("/etc/systemd/system/other.service", "[Service]\nExecStart=/usr/bin/sleep infinity\n")
    node.run("mkdir", "-p", REPOSITORY)
    publish(node, "1")
    node.run("systemctl", "daemon-reload")
    node.run("systemctl", "start", "lab-rpm")
    node.wait(22)
    node.run("sh", "-c", "until curl -sSf http://127.0.0.1:8080/repodata/repomd.xml >/dev/null; do sleep 0.1; done")
    node.run("dnf", "--quiet", "--assumeyes", "install", "beacon")
    node.run("systemctl", "start", "beacon", "other")
    return steps


def run(steps: Steps, *which: str, code: int = 0, check: bool = False, **more: object) -> str:
    return steps.run(
        "package_service", which or STEPS, ["web1"], {**SETTINGS, **more}, *(["--check"] if check else []), code=code
    )


@pytest.mark.thorough
def test_packages_are_downloaded_before_anything_is_stopped(steps: Steps) -> None:
    node = steps.lab.nodes["web1"]
    publish(node, "2")
    run(steps, check=True)
    assert installed(node) == "1"
    assert cached(node) == []

    run(steps, "validate", "prepare")
    assert cached(node) == ["beacon-2-1.noarch.rpm"]
    assert installed(node) == "1"
    assert is_active(node)
    shown = run(steps, "prepare")
    assert "changed=0 " in shown, shown

    run(steps)
    assert installed(node) == "2"
    assert is_active(node)
    assert "version 2" in (node.read("/usr/local/sbin/beacon") or "")


@pytest.mark.thorough
def test_a_second_run_stops_and_starts_the_service_and_changes_nothing_else(steps: Steps) -> None:
    shown = run(steps)
    assert "changed=2 " in shown, shown
    assert installed(steps.lab.nodes["web1"]) == "2"


@pytest.mark.thorough
def test_nothing_is_downloaded_again_after_a_missing_package_was_installed(steps: Steps) -> None:
    node = steps.lab.nodes["web1"]
    publish(node, "2.1")
    publish(node, "1", name="lantern")
    packages = ["beacon", "lantern"]
    run(steps, "prepare", package_service_packages=packages)
    assert sorted(cached(node)) == ["beacon-2.1-1.noarch.rpm", "lantern-1-1.noarch.rpm"]
    # The sources still list them.
    node.run("sh", "-c", f"mv {REPOSITORY}/noarch/beacon-2.1-* {REPOSITORY}/noarch/lantern-* /root")
    run(steps, "stop", "upgrade", "start", package_service_packages=packages)
    assert (installed(node), installed(node, "lantern")) == ("2.1", "1")
    assert cached(node) == []


@pytest.mark.thorough
def test_a_failed_download_stops_nothing(steps: Steps) -> None:
    node = steps.lab.nodes["web1"]
    before = installed(node)
    publish(node, "3")
    node.run("sh", "-c", f"mv {REPOSITORY}/noarch/beacon-3-1.noarch.rpm /root")
    shown = one_line(run(steps, "prepare", code=2))
    assert "web1: beacon could not be downloaded for v2, so they were not replaced:" in shown
    assert (
        "Check the package sources and the space on the host, and dnf versionlock list. The step can run again."
        in shown
    )
    assert installed(node) == before
    assert is_active(node)

    node.run("mv", "/root/beacon-3-1.noarch.rpm", f"{REPOSITORY}/noarch")
    run(steps)
    assert installed(node) == "3"
    assert is_active(node)


@pytest.mark.thorough
def test_a_run_without_space_for_a_download_stops_nothing_and_ends_with_the_next_command(
    steps: Steps, tmp_path: Path
) -> None:
    node = steps.lab.nodes["web1"]
    site = Site(tmp_path, steps.lab)
    site.inventory(
        {"web": {"plane": "dataplane", "services": [{"service": "package_service", "name": "web", "vars": SETTINGS}]}},
        {"web": ["web1"]},
    )
    publish(node, "4", size=1_000_000)
    node.run("dnf", "--quiet", "makecache")
    folder = node.run("sh", "-c", "cd /var/cache/dnf/lab-*/ && mkdir -p packages && cd packages && pwd").stdout.strip()
    before, old = installed(node), process(node)
    node.run("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder)
    try:
        shown = site.play("upgrade", version="v4", code=2)
        sentence = one_line(shown).partition("web1: beacon could not be downloaded for v4, so they were not replaced:")[
            2
        ]
        reason, _advice, rest = sentence.partition("Check the package sources and the space on the host")
        assert "Failed writing received data to disk" in reason
        assert rest.startswith(", and dnf versionlock list. The step can run again.")
        last = shown.rstrip().splitlines()[-1]
        assert last.startswith("Next: ansible-playbook ")
        assert last.endswith("-e retry_failed=true")
        assert (installed(node), process(node)) == (before, old)
    finally:
        node.run("umount", folder)
    site.play("upgrade", version="v4", retry_failed=True)
    assert installed(node) == "4"
    assert is_active(node)


@pytest.mark.thorough
def test_package_scripts_restart_no_service_and_newer_versions_in_the_sources_are_listed(steps: Steps) -> None:
    node = steps.lab.nodes["web1"]
    before, old, other = installed(node), process(node), process(node, "other")
    publish(node, "9")
    shown = one_line(steps.run("package_service", ["validate"], ["web1"], SETTINGS, "-v"))
    assert f"package_service_outdated: - - beacon - {before}-1 - 9-1 " in shown, shown
    run(steps, "prepare", "upgrade")
    assert installed(node) == "9"
    assert (process(node), process(node, "other")) == (old, other)
    # Without the environment of the step, the same scripts restart them.
    node.run("dnf", "--quiet", "--assumeyes", "reinstall", "beacon")
    assert process(node) != old
    assert process(node, "other") != other
    run(steps)
    shown = one_line(steps.run("package_service", ["validate"], ["web1"], SETTINGS, "-v"))
    assert "package_service_outdated: [] " in shown, shown


@pytest.mark.thorough
def test_repositories_reads_metadata_again_that_dnf_regards_as_fresh(steps: Steps) -> None:
    node = steps.lab.nodes["web1"]
    before = offered(node)
    node.run("sed", "-i", "s/^metadata_expire=.*/metadata_expire=48h/", "/etc/yum.repos.d/lab.repo")
    node.run("dnf", "--quiet", "makecache")
    publish(node, "9.5", is_known=False)
    assert offered(node) == before
    steps.run("repositories", ["prepare"], ["web1"], {"repositories_files": []})
    assert offered(node) == "9.5"
    node.run("sed", "-i", "s/^metadata_expire=.*/metadata_expire=0/", "/etc/yum.repos.d/lab.repo")
    withdraw(node, "9.5")


@pytest.mark.thorough
def test_a_package_that_dnf_may_not_upgrade_is_refused(steps: Steps) -> None:
    node = steps.lab.nodes["web1"]
    publish(node, "9.6")
    run(steps)
    assert installed(node) == "9.6"
    publish(node, "9.7")
    node.run("sh", "-c", "echo excludepkgs=beacon >>/etc/dnf/dnf.conf")
    for step in ("prepare", "verify"):
        shown = one_line(run(steps, step, code=2))
        assert (
            "web1: beacon is at 9.6-1, which dnf keeps, because an option excludepkgs excludes it, and the newest version in the "
            in shown
        )
        assert "sources is 9.7-1. Remove it from the option on the host." in shown
    node.run("sed", "-i", "/^excludepkgs/d", "/etc/dnf/dnf.conf")
    # A lock on a version that no source has any more.
    node.run("dnf", "--quiet", "versionlock", "add", "beacon")
    withdraw(node, "9.6")
    shown = one_line(run(steps, "prepare", code=2))
    assert (
        "Check the package sources and the space on the host, and dnf versionlock list. The step can run again."
        in shown
    )
    node.run("dnf", "--quiet", "versionlock", "delete", "beacon")
    run(steps)
    assert installed(node) == "9.7"


@pytest.mark.thorough
def test_it_goes_back_with_the_sources(steps: Steps) -> None:
    node = steps.lab.nodes["web1"]
    older = installed(node)
    publish(node, "10")
    run(steps, "prepare", "upgrade")
    assert installed(node) == "10"
    withdraw(node, "10")
    shown = one_line(run(steps, "verify", code=2))
    assert f"web1: beacon is at 10-1 and the sources have {older}-1. Run 'dnf distro-sync beacon' on the host" in shown
    run(steps, "prepare")
    assert f"beacon-{older}-1.noarch.rpm" in cached(node)
    assert installed(node) == "10"
    shown = run(steps, "prepare")
    assert "changed=0 " in shown, shown
    run(steps)
    assert installed(node) == older
    assert is_active(node)
    # A package that no source has was installed from a file.
    withdraw(node, "*")
    run(steps, "prepare", "upgrade", "verify")
    assert installed(node) == older


@pytest.mark.thorough
def test_an_unknown_package_is_refused_before_anything_is_touched(steps: Steps) -> None:
    shown = one_line(run(steps, "validate", code=2, package_service_packages=["beacom"]))
    assert "web1: beacom: no such package is installed, and no package source of the host offers one." in shown


@pytest.mark.thorough
def test_another_dnf_at_work_is_waited_for_with_a_limit(steps: Steps) -> None:
    node = steps.lab.nodes["web1"]
    before, old = installed(node), process(node)
    node.write("/root/hold.sh", f"echo $$ >{METADATA_LOCK}\nexec sleep $1\n")
    node.run("systemd-run", "--quiet", "--unit=holder", "/bin/sh", "/root/hold.sh", "600")
    node.run("sh", "-c", f"until test -s {METADATA_LOCK}; do sleep 0.1; done")
    try:
        for step in ("validate", "upgrade"):
            shown = one_line(run(steps, step, code=2, package_service_lock_timeout=5))
            assert re.search(r"[Ff]ailed to obtain the metadata lock|already locked by", shown), shown
        assert (installed(node), process(node)) == (before, old)
        assert is_active(node)
    finally:
        node.run("systemctl", "stop", "holder")
    run(steps, "validate", "prepare")
