# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""package_service on a node with the real nginx."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from lab.node import Node
from lab.packages import Package, repository
from push.site import Site

from .conftest import MakeSteps
from .snapshots import PINS, installed, publish, use_version
from .steps import STEPS, Steps, one_line

PACKAGES = ["nginx", "nginx-common"]
ARCHIVES = "/var/cache/apt/archives"
SETTINGS = {
    "package_service_packages": PACKAGES,
    "package_service_units": ["nginx.service"],
    "package_service_verify_ports": [80],
    "package_service_verify_commands": ["nginx -t"],
    "package_service_verify_timeout": 5,
}


@pytest.fixture(scope="module")
def steps(make_steps: MakeSteps) -> Steps:
    """A node with Debian's nginx, which runs, and a snapshot v2 of it."""
    steps = make_steps({"web1": "web"}, packages=["haproxy", "nginx"])
    for version in ("v1", "v2"):
        publish(steps.lab, PACKAGES, version)
    node = steps.lab.nodes["web1"]
    node.write("/etc/nginx/conf.d/mine.conf", "server_tokens off;\n")
    node.write(
        "/etc/nginx/mime.types", (node.read("/etc/nginx/mime.types") or "types { text/html html; }\n") + "# mine\n"
    )
    node.run("systemctl", "start", "nginx")
    return steps


def run(steps: Steps, *which: str, code: int = 0, check: bool = False, **more: object) -> str:
    return steps.run(
        "package_service", which or STEPS, ["web1"], {**SETTINGS, **more}, *(["--check"] if check else []), code=code
    )


@pytest.mark.thorough
def test_nothing_is_changed_in_check_mode(steps: Steps) -> None:
    node = steps.lab.nodes["web1"]
    before = installed(node, "nginx")
    use_version(node, "v2")
    run(steps, check=True)
    assert installed(node, "nginx") == before
    assert node.run("systemctl", "is-active", "nginx").stdout == "active\n"


@pytest.mark.thorough
def test_the_service_goes_to_the_version_of_the_sources_and_keeps_its_configuration(steps: Steps) -> None:
    node = steps.lab.nodes["web1"]
    run(steps)
    assert [installed(node, name).endswith("+v2") for name in PACKAGES] == [True, True]
    assert node.read("/usr/share/doc/nginx/remade") == f"{installed(node, 'nginx')}\n"
    assert (node.read("/etc/nginx/mime.types") or "").endswith("# mine\n")
    assert node.run("curl", "-sSf", "http://127.0.0.1/").stdout


@pytest.mark.thorough
def test_a_second_run_leaves_it_as_it_is(steps: Steps) -> None:
    node = steps.lab.nodes["web1"]
    before = installed(node, "nginx")
    shown = run(steps)
    assert installed(node, "nginx") == before
    # It is stopped and started again, and that is all.
    assert "changed=2 " in shown


@pytest.mark.thorough
def test_packages_scripts_do_not_start_what_was_stopped(steps: Steps) -> None:
    node = steps.lab.nodes["web1"]
    use_version(node, "v1", PINS)
    run(steps, "stop", "upgrade")
    assert node.run("systemctl", "is-active", "nginx", check=False).stdout == "inactive\n"
    # As a socket does at the first connection.
    node.run("systemctl", "start", "nginx")
    assert node.run("ls", "/usr/sbin/policy-rc.d", check=False).returncode


@pytest.mark.thorough
def test_it_goes_back_where_the_pins_say_so(steps: Steps) -> None:
    node = steps.lab.nodes["web1"]
    shown = ("systemctl", "show", "--property=MainPID", "--value", "nginx")
    before = node.run(*shown).stdout
    run(steps, "start", "verify")
    # What came back may be the old version.
    assert node.run(*shown).stdout not in (before, "0\n")
    assert [installed(node, name).endswith("+v2") for name in PACKAGES] == [False, False]
    use_version(node, "v2")


@pytest.mark.thorough
def test_what_an_interrupted_run_left_is_finished(steps: Steps) -> None:
    node = steps.lab.nodes["web1"]
    node.run("systemctl", "stop", "nginx")
    for name in PACKAGES:
        (deb,) = (steps.lab.shared / "v2").glob(f"{name}_*.deb")
        node.run("dpkg", "--unpack", "--force-confold", f"/srv/lab/v2/{deb.name}")
    assert node.run("dpkg", "--audit").stdout
    own = "#!/bin/sh\n# The host's own.\nexit 104\n"
    node.write("/usr/sbin/policy-rc.d.convoy", own, 0o755)
    node.write("/usr/sbin/policy-rc.d", "#!/bin/sh\n# convoy.upgrade\nexit 101\n", 0o755)
    run(steps, "upgrade")
    assert node.run("dpkg", "--audit").stdout == ""
    # What its scripts would have started is as stopped as before, and the host's own policy is in its place.
    assert node.run("systemctl", "is-active", "nginx", check=False).stdout == "inactive\n"
    assert node.read("/usr/sbin/policy-rc.d") == own
    run(steps, "upgrade")
    assert node.read("/usr/sbin/policy-rc.d") == own
    assert node.read("/usr/sbin/policy-rc.d.convoy") is None
    node.run("rm", "/usr/sbin/policy-rc.d")
    run(steps, "start", "verify")
    assert installed(node, "nginx").endswith("+v2")


@pytest.mark.thorough
def test_a_rollback_that_apt_would_not_make_is_refused_before_anything_is_stopped(steps: Steps) -> None:
    node = steps.lab.nodes["web1"]
    newer = installed(node, "nginx")
    use_version(node, "v1")
    older = newer.removesuffix("+v2")
    for step in ("prepare", "verify"):
        shown = one_line(run(steps, step, code=2))
        assert (
            f"web1: nginx is at {newer}, which no package source has, and the newest version that they have is {older}; "
            in shown
        )
        assert f"nginx-common is at {newer}," in shown
        assert "Pin the package sources with a priority above 1000 in /etc/apt/preferences.d on the host" in shown
    assert node.run("systemctl", "is-active", "nginx").stdout == "active\n"
    # A package that no source has was installed from a file.
    node.write("/etc/apt/sources.list.d/lab.list", "")
    node.run("apt-get", "-q", "update")
    run(steps, "prepare", "verify")
    use_version(node, "v2")
    run(steps, "verify")


@pytest.mark.thorough
def test_an_interrupted_run_of_dpkg_is_finished_before_packages_are_downloaded(steps: Steps) -> None:
    node = steps.lab.nodes["web1"]
    publish(steps.lab, PACKAGES, "v3")
    node.write("/etc/apt/sources.list.d/lab.list", "deb [trusted=yes] copy:/srv/lab/v3 ./\n")
    node.run("apt-get", "-q", "update")
    # What dpkg has not yet merged into its status.
    node.run("sh", "-c", "dpkg-query --status nginx >/var/lib/dpkg/updates/0001")
    run(steps, "prepare")
    assert "nginx_" in node.run("ls", "/var/cache/apt/archives").stdout
    assert node.run("ls", "/var/lib/dpkg/updates").stdout == ""
    assert node.run("ls", "/usr/sbin/policy-rc.d", check=False).returncode
    assert node.run("systemctl", "is-active", "nginx").stdout == "active\n"
    use_version(node, "v2")


@pytest.mark.thorough
def test_units_run_while_another_program_has_the_lock_of_apt(steps: Steps) -> None:
    node = steps.lab.nodes["web1"]
    with locking(node, 600) as process:
        shown = one_line(run(steps, "stop", code=2, package_service_lock_timeout=2))
        assert "web1: nginx, nginx-common could not be downloaded for v2, so they were not replaced:" in shown
        assert "Could not get lock /var/lib/dpkg/lock-frontend" in shown
        assert node.run("systemctl", "is-active", "nginx").stdout == "active\n"
        node.run("kill", process)


@contextmanager
def locking(node: Node, seconds: float) -> Iterator[str]:
    """Have another program on a node that holds the lock of apt for some seconds; give its PID on the node."""
    lock = (
        "import fcntl, os, time; file = open('/var/lib/dpkg/lock-frontend', 'w'); fcntl.lockf(file, fcntl.LOCK_EX); "
        f"print(os.getpid(), flush=True); time.sleep({seconds})"
    )
    with subprocess.Popen(node.command("python3", "-c", lock), stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        process = other.stdout.readline().strip()
        try:
            yield process
        finally:
            # Otherwise a failed assertion would wait until the program ends by itself.
            node.run("kill", process, check=False)


@pytest.mark.thorough
def test_the_lock_of_another_program_is_waited_for(steps: Steps) -> None:
    node = steps.lab.nodes["web1"]
    with locking(node, 12) as process:
        run(steps, "stop", "upgrade", "start", package_service_lock_timeout=60)
        assert node.run("kill", "-0", process, check=False).returncode, "it has ended"
    assert node.run("systemctl", "is-active", "nginx").stdout == "active\n"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"package_service_packages": []}, "package_service_packages is empty, so there is nothing to upgrade"),
        (
            {"package_service_packages": ["nginx", "ngonx"]},
            "web1: ngonx: no such package is installed, and no package source",
        ),
        (
            {"package_service_units": ["ngonx.service"]},
            "web1: systemd has no unit ngonx.service, so it could not be stopped",
        ),
    ],
)
def test_what_is_not_there_is_refused_before_anything_is_touched(
    steps: Steps, settings: dict[str, object], sentence: str
) -> None:
    assert sentence in one_line(run(steps, "validate", code=2, **settings))


@pytest.mark.thorough
def test_a_masked_unit_is_refused_before_anything_is_touched(steps: Steps) -> None:
    node = steps.lab.nodes["web1"]
    node.run("systemctl", "mask", "cron")
    shown = one_line(run(steps, "validate", code=2, package_service_units=["nginx.service", "cron.service"]))
    assert "web1: the unit cron.service is masked, so it could not be started after the upgrade." in shown
    node.run("systemctl", "unmask", "cron")
    run(steps, "validate", package_service_units=["nginx.service", "cron.service"])


@pytest.mark.thorough
def test_a_service_that_does_not_run_is_reported_in_a_sentence(steps: Steps) -> None:
    node = steps.lab.nodes["web1"]
    shown = run(steps, "verify", code=2, package_service_verify_ports=[81], package_service_verify_timeout=1)
    assert "web1: no answer on 127.0.0.1 port 81 within 1 s. Check in the log of nginx.service" in one_line(shown)
    shown = run(steps, "verify", code=2, package_service_verify_commands=["ls /nowhere"])
    assert "'ls /nowhere' ended with 2: ls: cannot access '/nowhere': No such file or directory" in one_line(shown)
    node.run("systemctl", "stop", "nginx")
    shown = run(steps, "verify", code=2, package_service_verify_timeout=1)
    assert "web1: the unit nginx.service is inactive after 1 s." in one_line(shown)
    node.run("systemctl", "start", "nginx")
    use_version(node, "v1", PINS)
    assert "and the sources have" in one_line(run(steps, "verify", code=2))


@contextmanager
def without_space_for(steps: Steps, version: str) -> Iterator[None]:
    """Publish a version that a node can't download, as its disk is full. The service runs."""
    node = steps.lab.nodes["web1"]
    publish(steps.lab, PACKAGES, version)
    use_version(node, version)
    # Packages behind copy: are downloaded, those behind file: are used where they are.
    node.write("/etc/apt/sources.list.d/lab.list", f"deb [trusted=yes] copy:/srv/lab/{version} ./\n")
    node.run("apt-get", "-q", "update")
    node.run("apt-get", "clean")
    node.run("systemctl", "start", "nginx")
    node.run("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", ARCHIVES)
    node.run("mkdir", f"{ARCHIVES}/partial")
    try:
        yield
    finally:
        node.run("umount", ARCHIVES)


@pytest.mark.thorough
def test_packages_are_downloaded_before_anything_is_stopped(steps: Steps) -> None:
    node = steps.lab.nodes["web1"]
    with without_space_for(steps, "v4"):
        shown = one_line(run(steps, "prepare", code=2))
        assert "web1: nginx, nginx-common could not be downloaded" in shown
        assert "so they were not replaced:" in shown
        assert "free space" in shown
        assert node.run("systemctl", "is-active", "nginx").stdout == "active\n"

    assert "changed=1 " in run(steps, "prepare")
    assert [name for name in node.run("ls", ARCHIVES).stdout.split() if name.startswith("nginx_")]
    assert "changed=0 " in run(steps, "prepare")
    run(steps)
    assert [installed(node, name).endswith("+v4") for name in PACKAGES] == [True, True]


@pytest.mark.thorough
def test_a_run_without_space_for_a_download_stops_nothing_and_ends_with_the_next_command(
    steps: Steps, tmp_path: Path
) -> None:
    node = steps.lab.nodes["web1"]
    site = Site(tmp_path, steps.lab)
    service = {"service": "package_service", "name": "web", "vars": SETTINGS}
    site.inventory({"web": {"plane": "dataplane", "services": [service]}}, {"web": ["web1"]})
    with without_space_for(steps, "v5"):
        before = node.run("systemctl", "show", "--property=MainPID", "nginx").stdout
        shown = site.play("upgrade", version="v5", code=2)
        assert "web1: nginx, nginx-common could not be downloaded for v5, so they were not replaced:" in one_line(shown)
        last = shown.rstrip().splitlines()[-1]
        # With another release of Ansible than that of PATH, its path.
        assert re.match(r"Next: (/\S+/)?ansible-playbook ", last)
        assert last.endswith("-e retry_failed=true")
        assert node.run("systemctl", "is-active", "nginx").stdout == "active\n"
        assert node.run("systemctl", "show", "--property=MainPID", "nginx").stdout == before
        assert not [name for name in PACKAGES if installed(node, name).endswith("+v5")]
    site.play("upgrade", version="v5", retry_failed=True)
    assert [installed(node, name).endswith("+v5") for name in PACKAGES] == [True, True]


def own(steps: Steps, version: str, *packages: Package) -> None:
    """Publish packages of our own, and let the node's sources have them."""
    repository(steps.lab.shared / version, packages)
    use_version(steps.lab.nodes["web1"], version)


@pytest.mark.thorough
def test_packages_that_would_remove_others_are_refused_and_an_unpack_that_stopped_half_way_is_finished(
    steps: Steps,
) -> None:
    node = steps.lab.nodes["web1"]
    settings: dict[str, object] = {
        "package_service_packages": ["lab-server", "lab-tools"],
        "package_service_units": [],
        "package_service_verify_ports": [],
        "package_service_verify_commands": [],
    }

    def published(version: str) -> list[Package]:
        needs = f"lab-tools (= {version})"
        return [
            Package("lab-server", version, depends=needs),
            Package("lab-sentinel", version, depends=needs),
            Package("lab-tools", version),
        ]

    own(steps, "own1", *published("1"))
    node.run("apt-get", "-q", "-y", "install", "lab-server", "lab-sentinel")
    server, sentinel, tools = published("2")
    own(steps, "own2", server, tools)
    shown = one_line(run(steps, "prepare", code=2, **settings))
    assert "web1: the new packages would remove lab-sentinel. Nothing was changed." in shown
    shown = one_line(run(steps, "upgrade", code=2, **settings))
    assert "first update the lists: ansible web1 -b -m ansible.builtin.apt -a update_cache=true" in shown
    assert [installed(node, name) for name in ("lab-server", "lab-sentinel", "lab-tools")] == ["1", "1", "1"]

    own(steps, "own3", server, sentinel, tools)
    settings["package_service_packages"] = ["lab-server", "lab-tools", "lab-sentinel"]
    run(steps, "prepare", **settings)
    # As if the host had lost power then: dpkg can't configure it, as its tools are older.
    node.run("sh", "-c", "dpkg --unpack /srv/lab/own3/lab-server_2_*.deb")
    assert node.run("dpkg", "--audit").stdout
    run(steps, "prepare", "upgrade", "verify", **settings)
    assert node.run("dpkg", "--audit").stdout == ""
    assert [installed(node, name) for name in ("lab-server", "lab-sentinel", "lab-tools")] == ["2", "2", "2"]
