# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module node_packages with real apt and real dnf, on a node: up, down, held, hung, and what ansible-doc says."""

from __future__ import annotations

import pytest
from lab.node import Node
from lab.packages import Package, repository
from module_calls import ModuleCalls

from .conftest import MakeFleet
from .fleet import Fleet
from .snapshots import PINS

NODE = "compute1"
HANGS = "#!/bin/sh\necho waiting for a human\nsleep 3000\n"
# Perl that needrestart runs: its setting, and the one that takes precedence.
ASKS = """\
$nrconf{restart} = 'i';
open(my $out, '>>', '/root/needrestart');
print $out "$nrconf{restart}, but $ENV{NEEDRESTART_MODE}\\n";
close($out);
1;
"""

SPEC = """\
Name: fleet-tool
Version: %s
Release: 1
Summary: A tool of the fleet
License: GPL
BuildArch: noarch
Provides: /bin/sh
%%description
A tool of the fleet.
%%install
mkdir -p %%{buildroot}/usr/bin
printf '#!/bin/sh\\necho %s\\n' >%%{buildroot}/usr/bin/fleet-tool
chmod 755 %%{buildroot}/usr/bin/fleet-tool
%%files
/usr/bin/fleet-tool
%%post
%s
"""

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def fleet(make_fleet: MakeFleet) -> Fleet:
    fleet = make_fleet({NODE: "compute"}, packages=["dnf", "dnf-plugins-core", "createrepo-c", "rpm", "needrestart"])
    node = fleet.lab.nodes[NODE]
    node.write("/etc/apt/sources.list.d/fleet.list", "deb [trusted=yes] file:/srv/lab/repository ./\n")
    node.write("/etc/apt/preferences.d/fleet", PINS)
    # This plugin comes with versionlock. Its own repository needs keys.
    node.write("/etc/dnf/plugins/local.conf", "[main]\nenabled = false\n")
    node.write("/etc/yum.repos.d/fleet.repo", "[fleet]\nname=fleet\nbaseurl=file:///srv/rpms\ngpgcheck=0\n")
    return fleet


@pytest.fixture
def node(fleet: Fleet) -> Node:
    return fleet.lab.nodes[NODE]


@pytest.fixture(scope="module")
def packages(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> ModuleCalls:
    return ModuleCalls("node_packages", fleet.inventory, NODE, tmp_path_factory.mktemp("calls") / "home")


def publish(fleet: Fleet, version: str, **scripts: str) -> None:
    files = {"/usr/bin/fleet-tool": f"#!/bin/sh\necho {version}\n", "/etc/fleet-tool.conf": f"{version}\n"}
    repository(fleet.lab.shared / "repository", [Package("fleet-tool", version, files, scripts=scripts)])


def runs(node: Node) -> str:
    return node.run("fleet-tool").stdout.strip()


def test_apt_goes_up_and_down_and_keeps_what_was_changed(fleet: Fleet, node: Node, packages: ModuleCalls) -> None:
    publish(fleet, "1.0")
    first, again = (packages(manager="apt", packages=["fleet-tool"]) for _time in range(2))
    assert (first["changed"], again["changed"], runs(node)) == (True, False, "1.0")
    node.write("/etc/fleet-tool.conf", "mine\n")
    publish(fleet, "2.0")
    node.run("apt-get", "-q", "update")
    shown = packages(manager="apt", check=True)
    assert (shown["changed"], runs(node)) == (True, "1.0")
    done = packages(manager="apt", lock_timeout=60)
    assert (done["changed"], runs(node)) == (True, "2.0")
    assert "fleet-tool" in done["output"]
    assert node.read("/etc/fleet-tool.conf") == "mine\n"
    publish(fleet, "1.0")
    assert packages(manager="apt")["changed"]
    assert runs(node) == "1.0"


def test_a_held_package_stays(fleet: Fleet, node: Node, packages: ModuleCalls) -> None:
    publish(fleet, "3.0")
    node.run("apt-mark", "hold", "fleet-tool")
    done = packages(manager="apt", packages=["fleet-tool"])
    node.run("apt-mark", "unhold", "fleet-tool")
    assert (done["failed"], done["changed"], runs(node)) == (False, False, "1.0")


def test_a_question_has_no_one_to_answer_it(fleet: Fleet, node: Node, packages: ModuleCalls) -> None:
    publish(fleet, "4.0", postinst="#!/bin/sh\nread answer\necho answered $answer\n")
    done = packages(manager="apt")
    assert not done["failed"]
    assert "answered" in done["output"]
    publish(fleet, "5.0")
    packages(manager="apt")
    assert runs(node) == "5.0"


def test_a_maintainer_script_that_hangs_is_ended_and_the_next_version_goes_on(
    fleet: Fleet, node: Node, packages: ModuleCalls
) -> None:
    publish(fleet, "6.0", postinst=HANGS)
    failed = packages(manager="apt", timeout=20)
    assert failed["failure"]["code"] == "packages_failed"
    assert "took longer than 20 s and was ended with all that it had started" in failed["failure"]["message"]
    assert "waiting for a human" in failed["failure"]["message"]
    assert failed["exit_code"] is None
    assert node.run("pgrep", "-f", "sleep 3000", check=False).stdout == ""
    publish(fleet, "7.0")
    assert packages(manager="apt")["changed"]
    assert runs(node) == "7.0"
    assert node.run("dpkg", "--audit").stdout == ""


def test_debconf_and_needrestart_do_not_ask(fleet: Fleet, node: Node, packages: ModuleCalls) -> None:
    node.write("/etc/needrestart/conf.d/90-ask.conf", ASKS)
    confmodule = "#!/bin/sh\nset -e\n. /usr/share/debconf/confmodule\n"
    publish(
        fleet,
        "8.0",
        templates="Template: fleet-tool/colour\nType: string\nDefault: green\nDescription: Which colour?\n",
        config=f"{confmodule}db_input critical fleet-tool/colour || true\ndb_go\n",
        postinst=f'{confmodule}db_get fleet-tool/colour\necho "$DEBIAN_FRONTEND $RET" >/root/debconf\ndb_stop\n',
    )
    done = packages(manager="apt")
    assert not done["failed"], done["output"]
    assert runs(node) == "8.0"
    assert node.read("/root/debconf") == "noninteractive green\n"
    # It has only listed what it would restart, whatever its configuration says.
    assert set((node.read("/root/needrestart") or "").splitlines()) == {"i, but l"}


def test_dnf_goes_up_and_down(node: Node, packages: ModuleCalls) -> None:
    node.run("dpkg", "--purge", "fleet-tool")
    for version, changed in (("1.0", True), ("1.0", False), ("2.0", True), ("1.0", True)):
        # If the same version is built again, distro-sync installs it again.
        if changed:
            publish_rpm(node, version)
        shown = packages(manager="dnf", packages=["fleet-tool"], check=True)
        done = packages(manager="dnf", packages=["fleet-tool"])
        assert (shown["changed"], done["changed"]) == (changed, changed), shown["output"] + done["output"]
        assert runs(node) == version
    # A version that an operator has locked stays.
    node.run("dnf", "versionlock", "add", "fleet-tool")
    publish_rpm(node, "2.0")
    locked = packages(manager="dnf", packages=["fleet-tool"])
    assert (locked["failed"], locked["changed"], runs(node)) == (False, False, "1.0"), locked["output"]
    node.run("dnf", "versionlock", "clear")
    publish_rpm(node, "3.0", "echo waiting for a human; sleep 3000")
    failed = packages(manager="dnf", timeout=20)
    assert failed["failure"]["code"] == "packages_failed"
    assert "took longer than 20 s and was ended with all that it had started" in failed["failure"]["message"]
    assert node.run("pgrep", "-f", "sleep 3000", check=False).stdout == ""
    node.run("rm", "-r", "/srv/rpms")
    failed = packages(manager="dnf")
    assert "dnf distro-sync ended with 1" in failed["failure"]["message"]


def publish_rpm(node: Node, version: str, script: str = "true") -> None:
    node.write("/root/tool.spec", SPEC % (version, version, script))
    node.run("rm", "-rf", "/srv/rpms")
    defines = ("--define", "_topdir /root/rpmbuild", "--define", "_rpmdir /srv/rpms")
    node.run("rpmbuild", "-bb", *defines, "/root/tool.spec")
    node.run("createrepo_c", "/srv/rpms")


def test_all_that_ansible_doc_says_was_used(packages: ModuleCalls) -> None:
    for options in packages.examples():
        assert packages(**{**options, "manager": "apt", "packages": []})["failed"] is False
    packages.assert_documented()
