# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The live view of runs in which Ansible upgrades the hosts."""

from __future__ import annotations

import re

import pytest

from .site import Site

ROLES = {
    "controller": {"plane": "controlplane", "services": ["api"]},
    "web": {"plane": "dataplane", "services": ["app"]},
}
CAPS = {"rolling_rules": {"global": "unlimited", "roles": {"controller": 1, "web": 2}}}
LIVE = {"ANSIBLE_STDOUT_CALLBACK": "convoy.upgrade.rollout"}


@pytest.mark.thorough
def test_bars_services_and_steps_and_failures_in_full_as_they_happen(site: Site) -> None:
    site.service("api", ["prepare", "upgrade"])
    site.service("app", ["validate", "stop", "upgrade", "start"], after=["after"])
    site.inventory(ROLES, {"controller": ["controller1"], "web": ["web1", "web2", "web3"]})
    site.sleep(1.5)
    broken = site.fail("web1", "app/upgrade")
    seen = site.on_terminal("upgrade", environ=LIVE, version="v1", instructions=CAPS)
    try:
        seen.wait_for(
            lambda screen: (
                re.search(r"controller +▓+ +0/1  1 upgrading", screen)
                and re.search(r"web +░+ +0/3  3 waiting", screen)
                and re.search(r"controller1 +\d+:\d\d +api, step (prepare|upgrade)", screen)
            )
        )
        # As it happens: others are on their way still.
        seen.wait_for(lambda screen: "app-upgrade is broken here" in screen and re.search(r"web +.*upgrading", screen))
        seen.wait_for(lambda screen: re.search(r"web +[█▓░]*X.* 1 failed", screen))
        assert seen.end() == 2
    finally:
        seen.close()
    text = seen.text
    # The terminal breaks lines where it ends.
    unbroken = text.replace("\n", "")
    assert re.search(r"web1 failed at 'upgrade of app' \([^ ]*/tasks/step3_upgrade.yml:\d+\):", unbroken), text
    assert "  stderr:\n    app-upgrade is broken here\n" in text
    assert "controller1 upgraded" in text
    assert "web1 failed, service app, step upgrade: exit status 3" in unbroken
    for none in ("TASK [", "PLAY [", "ok: [", "fatal:"):
        assert none not in text
    assert site.reported("v1") == {"controller1", "web2", "web3"}

    # And the rest of it in lines, with its post-upgrade tasks.
    broken.unlink()
    site.sleep(0.2)
    ended = site.end(site.start("upgrade", environ=LIVE, version="v1", instructions=CAPS, retry_failed=True))
    assert ended.code == 0, ended.stdout
    assert re.search("web1 upgraded", ended.stdout), ended.stdout
    assert "runs its post-upgrade tasks" in ended.stdout
    assert "4 of 4 hosts upgraded" in ended.stdout
    assert "\x1b" not in ended.stdout
