# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings of a planner service that can't be used are one sentence, without what may be secret."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleError
from ansible.parsing.dataloader import DataLoader
from ansible_collections.convoy.upgrade.plugins.plugin_utils._notify.settings_file import load_settings
from ansible_collections.convoy.upgrade.plugins.plugin_utils._planner_service.settings import read_service_settings

VAULTED = "!vault |\n      $ANSIBLE_VAULT;1.1;AES256\n      3132\n"


@pytest.mark.parametrize(
    ("key", "text", "where"),
    [
        ("notify", f"targets:\n  - url: {VAULTED}", "targets[0].url"),
        (
            "maintenance",
            f"alertmanager:\n  url: http://am:9093\n  authorization: {VAULTED}",
            "alertmanager.authorization",
        ),
    ],
)
def test_a_value_of_ansible_vault_is_refused(tmp_path: Path, key: str, text: str, where: str) -> None:
    other = tmp_path / "other.yml"
    other.write_text(text)
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"name": "one", key: str(other)}))
    with pytest.raises(ValueError, match="vault") as refused:
        read_service_settings(str(file), {})
    text = str(refused.value)
    # Releases before 2.19 refuse it when they read the file.
    assert text.startswith(f"{file}: {key}: {other}: ")
    assert f"{where} is a value of ansible-vault" in text or "it can't be read" in text
    assert "3132" not in text


@pytest.mark.parametrize(
    "text",
    ["token: *s3cret\n", "a: b\ntoken: x: s3cret\n", "token: !s3cret x\n", 'token: "s3cret\n', "token: @s3cret\n"],
)
def test_a_mistake_in_a_file_is_named_without_its_text(tmp_path: Path, text: str) -> None:
    file = tmp_path / "notify.yml"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"it can't be read, line \d \(.+\)$") as refused:
        load_settings(DataLoader(), str(file))
    assert "s3cret" not in str(refused.value)


def test_the_line_that_older_releases_of_ansible_show_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_loader: Any, _file: str) -> Any:
        raise AnsibleError(
            "We were unable to read it.\n\nThe offending line appears to be:\n\ntoken: s3cret\n    ^ here\n"
        )

    file = tmp_path / "notify.yml"
    file.write_text("x")
    monkeypatch.setattr(DataLoader, "load_from_file", fails)
    with pytest.raises(ValueError, match=r"^it can't be read \(We were unable to read it\.\)$"):
        load_settings(DataLoader(), str(file))
