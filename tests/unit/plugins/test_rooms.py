# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The layout of plugins/ and agent/: each room imports only rooms below it, holds few files, and pure rooms do no IO."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from devkit.agent import ROOT

PLUGINS = ROOT / "plugins"
PACKAGE = "ansible_collections.convoy.upgrade.plugins."

# From the lowest floor to the highest one. CONTRIBUTING.md lists them from the highest floor and says what is in each.
ROOMS = (
    "module_utils/_common",
    "module_utils/_fleet",
    "module_utils/_codecs",
    "module_utils/_rules",
    "module_utils/_rule_checks",
    "module_utils/_host_states",
    "module_utils/_planner",
    "module_utils/_observe",
    "module_utils/_rollout_report",
    "module_utils/_consul",
    "module_utils/_state",
    "module_utils/_cache",
    "module_utils",
    "module_utils/_host",
    "module_utils/_rule_files",
    "module_utils/_rollout",
    "module_utils/_passes",
    "module_utils/_rollout/_commands",
    "module_utils/_queries",
    "module_utils/_node",
    "plugin_utils/_daemon_client",
    "plugin_utils/_services",
    "plugin_utils/_compose",
    "plugin_utils/_upgrade_path",
    "plugin_utils/_run",
    "plugin_utils/_actions",
    "plugin_utils/_migrate",
    "plugin_utils/_migrate/_layout_0",
    "plugin_utils/_migrate/steps",
    "plugin_utils/_observe",
    "plugin_utils/_wait",
    "plugin_utils/_pages",
    "plugin_utils/_push",
    "plugin_utils/_notify",
    "plugin_utils/_daemon",
    "plugin_utils/_planner_service",
    "modules",
    "lookup",
    "inventory",
    "filter",
    "callback",
    "action",
    "doc_fragments",
)
PURE = ROOMS[1:9]
# Folders of files that are no Python, each inside the room that reads it.
TEMPLATES = ("plugin_utils/_pages/templates",)
AGENT = ROOT / "agent"
# Likewise. The highest floor has the commands and the loop.
AGENT_ROOMS = ("convoy_node/machine", "convoy_node/node", "convoy_node/jobs", "convoy_node")
CLOCKS = {
    ("time", "time"),
    ("time", "monotonic"),
    ("time", "clock_gettime"),
    ("time", "sleep"),
    ("datetime", "now"),
    ("datetime", "today"),
    ("date", "today"),
}
# Folders that Ansible names, the frame of all modules, and the steps of which each layout has one.
OF_ANY_SIZE = {
    "doc_fragments",
    "modules",
    "lookup",
    "inventory",
    "filter",
    "callback",
    "action",
    "module_utils",
    "plugin_utils/_migrate/steps",
}
IMPURE_MODULES = {
    "os",
    "io",
    "socket",
    "subprocess",
    "threading",
    "select",
    "shutil",
    "tempfile",
    "pathlib",
    "random",
    "requests",
    "consul",
    "module_utils/_common/runtime",
}


def files() -> Iterator[tuple[str, Path]]:
    """Yield each file of Python below plugins/ with its room."""
    for path in sorted(PLUGINS.rglob("*.py")):
        yield path.parent.relative_to(PLUGINS).as_posix(), path


def files_of_any_kind() -> Iterator[tuple[str, Path]]:
    """Yield each file below plugins/ with its folder, except for what Python itself writes there."""
    for path in sorted(PLUGINS.rglob("*")):
        if path.is_file() and path.parent.name != "__pycache__":
            yield path.parent.relative_to(PLUGINS).as_posix(), path


def agent_files() -> Iterator[tuple[str, Path]]:
    """Yield each file of the agent's package with its room."""
    for path in sorted((AGENT / "convoy_node").rglob("*.py")):
        yield path.parent.relative_to(AGENT).as_posix(), path


def imported(path: Path, top: Path = PLUGINS) -> Iterator[str]:
    """Yield what a file imports, also in functions: its neighbors by their path below ``top``, all else by its first name.

    :param top: plugins/, or the folder with the agent's package. The agent imports its own files by relative names only.
    """
    here = path.relative_to(top).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = [*here[: len(here) - node.level + 1], *(node.module or "").split(".")]
            elif top == PLUGINS and f"{node.module}.".startswith(PACKAGE):
                base = str(node.module)[len(PACKAGE) :].split(".")
            else:
                yield str(node.module).partition(".")[0]
                continue
            whole = top.joinpath(*filter(None, base))
            for alias in node.names:
                found = whole / alias.name if whole.is_dir() else whole
                yield found.relative_to(top).as_posix()


def test_every_file_is_in_a_room() -> None:
    assert {room for room, _path in files()} == set(ROOMS)
    assert {room for room, _path in files_of_any_kind()} == {*ROOMS, *TEMPLATES}


def test_templates_and_code_stand_apart() -> None:
    kinds = {room: set[str]() for room in (*ROOMS, *TEMPLATES)}
    for room, path in files_of_any_kind():
        kinds[room].add(path.suffix)
    # Filters are documented in YAML.
    assert {room for room, found in kinds.items() if found != {".py"}} == {*TEMPLATES, "filter"}
    assert [room for room in TEMPLATES if ".py" in kinds[room]] == []


def test_contributing_lists_the_rooms_in_their_order() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text().partition("```text\n")[2].partition("\n```")[0]
    listed, parent = [], ""
    for indent, name in re.findall(r"^( +)(\w+(?:/\w+)*)/  ", text, re.MULTILINE):
        parent = name if len(indent) == 2 else parent
        if len(indent) == 4:
            listed.append(f"{parent}/{name}")
    assert listed == [room for room in reversed(ROOMS) if "/" in room]
    assert [f"{room}/templates" for room in re.findall(r"^    (\w+)/  .*\n      templates/  ", text, re.MULTILINE)] == [
        folder.partition("/")[2] for folder in TEMPLATES
    ]


def test_each_room_imports_only_rooms_below_it() -> None:
    floor = {room: number for number, room in enumerate(ROOMS)}
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for room, path in files()
        for name in imported(path)
        if "/" in name and floor[name.rpartition("/")[0]] > floor[room]
    ]
    assert wrong == []


def test_a_room_has_three_to_twelve_files() -> None:
    count = Counter(room for room, _path in files_of_any_kind())
    assert {room: number for room, number in count.items() if room not in OF_ANY_SIZE and not 3 <= number <= 12} == {}


def test_every_file_of_the_agent_is_in_a_room_of_three_to_twelve_files() -> None:
    count = Counter(room for room, path in agent_files() if path.name != "__init__.py")
    assert set(count) == {room for room, _path in agent_files()} == set(AGENT_ROOMS)
    assert {room: number for room, number in count.items() if not 3 <= number <= 12} == {}


@pytest.mark.parametrize("folder", ["tests/integration", "roles/puppet_gate"])
def test_no_folder_has_more_than_twelve_files(folder: str) -> None:
    count = Counter(path.parent.relative_to(ROOT) for path in (ROOT / folder).rglob("*.*") if path.suffix != ".pyc")
    assert {room: number for room, number in count.items() if number > 12} == {}


def test_contributing_lists_the_rooms_of_the_agent_in_their_order() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text().partition("\nagent/convoy_node/  ")[2].partition("\nplugins/\n")[0]
    listed = re.findall(r"^  (\w+)/  ", text, re.MULTILINE)
    assert [f"convoy_node/{room}" for room in listed] == list(reversed(AGENT_ROOMS[:-1]))


def test_each_room_of_the_agent_imports_only_rooms_below_it_and_the_standard_library() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for room, path in agent_files()
        for name in imported(path, AGENT)
        if not is_allowed_in_agent(room, name)
    ]
    assert wrong == []


def is_allowed_in_agent(room: str, name: str) -> bool:
    """Return whether a room of the agent may import what :func:`imported` yielded."""
    if "/" not in name:
        return name in sys.stdlib_module_names
    above = AGENT_ROOMS[AGENT_ROOMS.index(room) + 1 :]
    return name.rpartition("/")[0] in set(AGENT_ROOMS) - set(above)


@pytest.mark.parametrize(
    "source",
    [
        "from ..jobs.job import NodeJob",
        "from ..jobs import job",
        "from .. import resident",
        "from ..resident import Resident",
        "from ... import convoy_node",
        "import convoy_node.jobs.job",
        "from convoy_node.jobs.job import NodeJob",
        "import yaml",
        "from ansible_collections.convoy.upgrade.plugins.module_utils._common.names import is_name",
        "def work() -> None:\n    from ..jobs.job import NodeJob",
        "if TYPE_CHECKING:\n    from ..jobs.job import NodeJob",
    ],
)
def test_an_import_of_a_room_above_is_found_wherever_it_is(tmp_path: Path, source: str) -> None:
    for room in AGENT_ROOMS:
        (tmp_path / room).mkdir(parents=True, exist_ok=True)
    file = tmp_path / "convoy_node/node/gate.py"
    file.write_text(f"import json\nfrom ..machine import puppet\nfrom .consul import Consul\n{source}\n")
    found = [name for name in imported(file, tmp_path) if not is_allowed_in_agent("convoy_node/node", name)]
    assert len(found) == 1


def test_pure_rooms_do_no_io_and_read_no_clock() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for room, path in files()
        if room in PURE
        for name in imported(path)
        if name in IMPURE_MODULES
    ]
    wrong += [
        f"{path.relative_to(ROOT)}:{node.lineno} calls {node.value.id}.{node.attr}"
        for room, path in files()
        if room in PURE
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and (node.value.id, node.attr) in CLOCKS
    ]
    assert wrong == []


def test_pure_rooms_need_the_standard_library_alone() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for room, path in files()
        if room in PURE
        for name in imported(path)
        if "/" not in name and name not in sys.stdlib_module_names
    ]
    assert wrong == []


# Ansible looks for these names in each plugin.
NAMED_BY_ANSIBLE = {
    "ActionModule",
    "CallbackModule",
    "FilterModule",
    "InventoryModule",
    "LookupModule",
    "ModuleDocFragment",
}


def test_no_two_public_classes_share_a_name() -> None:
    places: dict[str, list[str]] = {}
    for path in (*PLUGINS.rglob("*.py"), *(ROOT / "agent").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(path.relative_to(ROOT).as_posix())
    twice = {name: found for name, found in places.items() if len(found) > 1 and name not in NAMED_BY_ANSIBLE}
    assert not twice
