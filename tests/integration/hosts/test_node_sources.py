# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""node_sources with a real Consul, in check mode, as it writes to /etc. tests/nodes writes on a node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._host.version_sources import read_sources
from ansible_collections.convoy.upgrade.plugins.module_utils._node.sources import write_sources
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.kv import RawKV
from integration.support.runs.playbook import Runner, Task

pytestmark = pytest.mark.one_release

PATH = "/etc/apt/sources.list.d/convoy-test.list"


def sources(**options: Any) -> Task:
    return {"convoy.upgrade.node_sources": options}


def test_the_files_of_a_version_come_from_consul_or_a_folder(run: Runner, consul: RawKV, tmp_path: Path) -> None:
    consul.put("upgrade/sources/2.10/", "")
    consul.put("upgrade/sources/2.10/convoy-test.list", "deb http://packages/{{ version }} ./\n")
    consul.put("upgrade/sources/2.10/convoy-test.pref", "Package: *\n")
    consul.put("upgrade/sources/2.1/convoy-other.list", "")
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "convoy-test.repo").write_text("[convoy]\nbaseurl=http://packages/{{ version }}\n")
    state = {"state_file": str(tmp_path / "state.json")}
    before = consul.tree()
    tasks = [
        sources(version="2.10", **state),
        sources(version="2.10", folder=str(folder), **state),
        sources(folder=str(folder), **state),
    ]
    found, local, unchanged = run(tasks, check=True, diff=True)
    assert (found["changed"], found["written"], found["removed"]) == (
        True, ["/etc/apt/preferences.d/convoy-test.pref", PATH], [],
    )  # fmt: skip
    assert found["diff"][1] == {
        "before_header": PATH, "after_header": PATH, "before": "", "after": "deb http://packages/2.10 ./\n",
    }  # fmt: skip
    assert local["diff"][0]["after"] == "[convoy]\nbaseurl=http://packages/2.10\n"
    assert unchanged["diff"][0]["after"] == "[convoy]\nbaseurl=http://packages/{{ version }}\n"
    assert local["written"] == ["/etc/yum.repos.d/convoy-test.repo"]
    assert not Path(PATH).exists()
    assert not (tmp_path / "state.json").exists()
    assert consul.tree() == before


@pytest.mark.parametrize(
    ("version", "code", "message"),
    [
        ("2.9", "no_sources", "Consul has no package sources of 2.9 in upgrade/sources/2.9/"),
        ("2.11", "bad_sources", "upgrade/sources/2.11/convoy-test.list is not UTF-8 text."),
        ("a/b", "bad_name", "a/b"),
    ],
)
def test_a_version_without_files_and_files_that_can_t_be_used_are_refused(
    version: str, code: str, message: str, store: Store, consul: RawKV
) -> None:
    consul.put("upgrade/sources/2.10/convoy-test.list", "")
    consul.put("upgrade/sources/2.11/convoy-test.list", b"\xff")
    with pytest.raises(UpgradeError) as caught:
        read_sources(store, version)
    assert caught.value.code == code
    assert message in caught.value.message


def test_only_the_files_of_the_version_are_read(store: Store, consul: RawKV) -> None:
    consul.put("upgrade/sources/2.10/", "")
    consul.put("upgrade/sources/2.10/a.list", "{{ version }}")
    consul.put("upgrade/sources/2.10/deep/b.list", "")
    consul.put("upgrade/sources/2.1/c.list", "")
    found = read_sources(store, "2.10")
    assert found == {"a.list": "{{ version }}", "deep/b.list": ""}
    with pytest.raises(UpgradeError, match=r"'deep/b\.list' can't be a file of package sources"):
        write_sources(found, "/nonexistent/state.json")
