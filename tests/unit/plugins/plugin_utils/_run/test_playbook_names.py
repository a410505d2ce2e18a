# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The collection's playbooks that a run consists of."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from ansible_collections.convoy.upgrade.plugins.plugin_utils._run.playbook_names import PLAYBOOKS, playbook_names


def play(file: str, part: str = "") -> SimpleNamespace:
    path = file if file.startswith("/") else f"{PLAYBOOKS}/{file}.yml"
    return SimpleNamespace(get_path=lambda: f"{path}:2", vars={"upgrade_part": part} if part else {})


OWN = play("/site/site.yml")
PARTS = (play("internal/validate"), play("internal/data_plane"))


@pytest.mark.parametrize(
    ("file", "plays", "names"),
    [
        ("site.yml", [OWN, play("internal/prepare", "all"), *PARTS], ("upgrade",)),
        ("node.yml", [play("internal/prepare", "role"), *PARTS, play("internal/finish", "role")], ("role",)),
        ("site.yml", [play("internal/prepare", "controlplane"), play("internal/prepare", "post_upgrade")], ("upgrade", "controlplane", "post_upgrade")),
        ("site.yml", [play("rollback"), play("internal/prepare", "all")], ("rollback", "upgrade")),
        ("site.yml", [play("command"), play("internal/data_plane")], ("command",)),
        ("site.yml", [play("command"), play("internal/prepare", "all")], ("upgrade", "command")),
        ("site.yml", [play("internal/prepare", "{{ part }}")], ("upgrade",)),
        ("site.yml", [OWN, play("status")], ("status",)),
        ("site.yml", [OWN], ("site",)),
        (f"{PLAYBOOKS}/status.yml", [play("status")], ("status",)),
        (f"{PLAYBOOKS}/rollback.yml", [play("rollback"), play("internal/prepare", "all")], ("rollback",)),
        (f"{PLAYBOOKS}/internal/notification.yml", [play("internal/notification")], ("notification",)),
    ],
)  # fmt: skip
def test_a_playbook_that_imports_others_counts_as_those(
    file: str, plays: list[SimpleNamespace], names: tuple[str, ...]
) -> None:
    assert playbook_names(file, plays) == names
