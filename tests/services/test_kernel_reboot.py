# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""kernel_reboot on nodes that really reboot. The kernel that they report is chosen by a boot loader of the lab."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab.node import Node
from push.site import Site

from .conftest import MakeSteps
from .kernels import NEW, OLD, RUNNING, boot_with, install
from .steps import POST, Steps

# What a service of the host does in a step, and in which boot.
_NOTE = """\
- name: Note the boot
  ansible.builtin.shell:
    cmd: test ! -e /srv/no-{step} && echo "{step} $(cat /proc/sys/kernel/random/boot_id)" >>/srv/boots
  changed_when: false
  tags: {step}
"""


def boot_of(node: Node) -> str:
    """Return what is different after each boot."""
    return node.run("cat", "/proc/sys/kernel/random/boot_id").stdout


@pytest.fixture(scope="module")
def steps(make_steps: MakeSteps) -> Steps:
    """Three nodes that run an old kernel."""
    steps = make_steps({f"compute{number}": "compute" for number in (1, 2, 3)})
    for node in steps.lab.nodes.values():
        boot_with(node, OLD)
    return steps


def run(steps: Steps, *which: str, hosts: tuple[str, ...] = ("compute1",), code: int = 0, **more: object) -> str:
    # Nodes of the lab have no logind, which Ansible's own command would ask.
    settings = {"kernel_reboot_timeout": 60, "kernel_reboot_command": "systemctl reboot", **more}
    shown = steps.run("kernel_reboot", which, hosts, settings, code=code)
    return " ".join(shown.split())


@pytest.mark.thorough
def test_a_host_whose_kernel_is_the_newest_is_left_alone(steps: Steps) -> None:
    before = boot_of(steps.lab.nodes["compute1"])
    assert "changed=0 " in run(steps, "validate", POST)
    assert boot_of(steps.lab.nodes["compute1"]) == before


@pytest.mark.thorough
def test_a_host_with_a_newer_kernel_reboots_into_it_and_others_do_not(steps: Steps) -> None:
    nodes = steps.lab.nodes
    # As text, 6.1.0-9 is the greater one.
    install(nodes["compute1"], NEW)
    nodes["compute1"].write("/srv/kept", "still here")
    before = {name: boot_of(node) for name, node in nodes.items()}
    run(steps, POST, hosts=("compute1", "compute2"))
    assert nodes["compute1"].run("cat", RUNNING).stdout == f"{NEW}\n"
    assert nodes["compute1"].read("/srv/kept") == "still here"
    assert [name for name, node in nodes.items() if boot_of(node) != before[name]] == ["compute1"]


@pytest.mark.thorough
def test_a_second_run_does_not_reboot_again(steps: Steps) -> None:
    before = boot_of(steps.lab.nodes["compute1"])
    assert "changed=0 " in run(steps, POST)
    assert boot_of(steps.lab.nodes["compute1"]) == before


@pytest.mark.thorough
def test_check_mode_reports_the_reboot_and_does_not_do_it(steps: Steps) -> None:
    node = steps.lab.nodes["compute3"]
    install(node, NEW, default=False)
    before = boot_of(node)
    shown = steps.run("kernel_reboot", ["validate", POST], ["compute3"], {}, "--check")
    assert "changed=1 " in shown
    assert boot_of(node) == before


@pytest.mark.thorough
def test_a_host_that_comes_back_with_another_kernel_is_reported(steps: Steps) -> None:
    node = steps.lab.nodes["compute3"]
    before = boot_of(node)
    shown = run(steps, POST, hosts=("compute3",), code=2)
    assert f"compute3: it was rebooted and runs {OLD}, though {NEW} is installed. The boot loader" in shown
    assert boot_of(node) != before


@pytest.mark.thorough
def test_a_kernel_without_the_initial_ram_disk_that_the_running_one_has_is_not_booted(steps: Steps) -> None:
    node = steps.lab.nodes["compute3"]
    before = boot_of(node)
    node.run("rm", "-f", "/var/lib/convoy/kernel_reboot")
    for running, newest in (
        (f"initrd.img-{OLD}", f"initrd.img-{NEW}"),
        (f"initramfs-{OLD}.img", f"initramfs-{NEW}.img"),
    ):
        node.write(f"/boot/{running}", "disk")
        # As after an update without space.
        node.write(f"/boot/{newest}", "")
        for step in ("validate", POST):
            shown = run(steps, step, hosts=("compute3",), code=2)
            assert (
                f"compute3: {NEW} is installed without an initial RAM disk in /boot, which {OLD} has, so the host"
                in shown
            )
        node.write(f"/boot/{newest}", "disk")
        run(steps, "validate", hosts=("compute3",))
        node.run("rm", f"/boot/{running}", f"/boot/{newest}")
    assert boot_of(node) == before


@pytest.mark.thorough
def test_an_unknown_kernel_and_a_local_connection_are_refused_before_anything_is_touched(steps: Steps) -> None:
    shown = run(steps, "validate", code=2, kernel_reboot_kernels=["/boot/nothing-*"])
    assert "compute1: there is no kernel at /boot/nothing-*, so it is unknown whether the host needs a reboot" in shown
    shown = run(steps, "validate", code=2, ansible_connection="local")
    assert "compute1: the connection is local, so a reboot would end Ansible itself. Reach the host over SSH" in shown


@pytest.mark.thorough
def test_a_reboot_in_the_upgrade_waits_until_the_services_may_stop_and_are_drained(
    steps: Steps, tmp_path: Path
) -> None:
    node = steps.lab.nodes["compute2"]
    install(node, NEW)
    before = boot_of(node)
    site = Site(tmp_path, steps.lab)
    (tmp_path / "roles/cluster/tasks").mkdir(parents=True)
    tasks = "".join(_NOTE.format(step=step) for step in ("may_stop", "drain", "start", "verify", "undrain"))
    (tmp_path / "roles/cluster/tasks/upgrade_tasks.yml").write_text(tasks)
    settings = {
        "kernel_reboot_in_upgrade": True,
        "kernel_reboot_timeout": 60,
        "kernel_reboot_command": "systemctl reboot",
    }
    site.inventory(
        {"compute": {"plane": "dataplane", "services": ["cluster", "kernel_reboot"]}},
        {"compute": ["compute2"]},
        compute2=settings,
    )
    node.write("/srv/no-may_stop", "")
    shown = site.play("upgrade", version="v2", upgrade_may_stop_timeout=1, code=2)
    assert "compute2: cluster could not be stopped within 1 s, and was not" in " ".join(shown.split())
    assert boot_of(node) == before

    node.run("rm", "/srv/no-may_stop")
    site.play("upgrade", version="v2", retry_failed=True)
    after = boot_of(node)
    assert after != before
    assert node.run("cat", RUNNING).stdout == f"{NEW}\n"
    lines = [tuple(line.split()) for line in (node.read("/srv/boots") or "").splitlines()]
    old, new = before.strip(), after.strip()
    assert lines == [("may_stop", old), ("drain", old), ("start", old), ("verify", new), ("undrain", new)]
