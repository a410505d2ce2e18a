# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What runs on hosts runs with Python 3.9, such as that of RHEL 9: the node agent, and the modules that Ansible starts there."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import ansible
import ansible_collections.convoy.upgrade
import pytest
from devkit.agent import ROOT
from missing import missing

_PLUGINS, _AGENT = ROOT / "plugins", ROOT / "agent"
_COLLECTION = "ansible_collections.convoy.upgrade.plugins"
# Other modules talk to Consul, on the control node or in an agent run, whose Python is that of the agent's release: node_sources is one of them.
_MODULES = (
    *("haproxy_server", "node_lock", "node_packages", "node_services"),
    *("node_validate", "puppet_info", "puppet_run"),
)
# Newer names of the standard library.
_NAMES = {
    *("datetime.UTC", "itertools.pairwise", "itertools.batched", "contextlib.aclosing", "contextlib.chdir"),
    *("enum.StrEnum", "types.NoneType", "types.UnionType", "inspect.get_annotations", "asyncio.TaskGroup"),
    *("asyncio.timeout", "asyncio.Runner", "hashlib.file_digest", "typing.Self", "typing.TypeAlias"),
    *("typing.ParamSpec", "typing.assert_never", "typing.override", "sys.exception", "math.cbrt", "math.exp2"),
    *("statistics.covariance", "traceback.print_exception_only", "glob.translate", "os.process_cpu_count"),
}
# Arguments that came later: name of the function -> arguments.
_ARGUMENTS = {
    "zip": {"strict"},
    "dataclass": {"slots", "kw_only", "weakref_slot"},
    "field": {"kw_only"},
    **{name: {"key"} for name in ("bisect", "bisect_left", "bisect_right", "insort", "insort_left", "insort_right")},
    **{name: {"root_dir", "dir_fd", "include_hidden"} for name in ("glob", "iglob")},
    "read_text": {"newline"},
    "write_text": {"newline"},
}
_METHODS = {"bit_count", "add_note", "hardlink_to", "with_segments", "walk_up"}
_MODULES_OF_LATER = {"tomllib"}


def files_on_hosts() -> list[Path]:
    """Return the files of the agent, of the room of nodes, and all that the modules on hosts import."""
    left = [
        *(_PLUGINS / "modules" / f"{name}.py" for name in _MODULES),
        *(_PLUGINS / "module_utils/_node").glob("*.py"),
    ]
    found: list[Path] = []
    for file in left:
        if file not in found:
            found.append(file)
            left += imported(file)
    return [*found, *_AGENT.rglob("*.py")]


def imported(file: Path) -> Iterator[Path]:
    """Return the files of the collection that one imports."""
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.ImportFrom):
            continue
        name = (node.module or "").split(".")
        if node.level:
            place = file.parents[node.level - 1].joinpath(*filter(None, name))
        elif ".".join(name).startswith(_COLLECTION):
            place = _PLUGINS.joinpath(*name[4:])
        else:
            continue
        places = [place.with_suffix(".py"), *(place / f"{alias.name}.py" for alias in node.names)]
        yield from (one for one in places if one.is_file())


def newer_than_3_9(source: str) -> list[str]:
    """Return what Python 3.9 does not have, with its line."""
    try:
        tree = ast.parse(source, feature_version=(3, 9))
    except SyntaxError as error:
        return [f"{error.lineno}: {error.msg}"]
    return [
        f"{node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(tree)
        if isinstance(node, (ast.stmt, ast.expr)) and _is_newer(node)
    ]


def _is_newer(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func).rpartition(".")[2]
        # X | Y is no type for isinstance.
        unions = name in ("isinstance", "issubclass") and any(
            isinstance(one, ast.BinOp) and isinstance(one.op, ast.BitOr) for one in ast.walk(node.args[-1])
        )
        return unions or any(given.arg in _ARGUMENTS.get(name, ()) for given in node.keywords)
    if isinstance(node, ast.Attribute):
        return ast.unparse(node) in _NAMES or node.attr in _METHODS
    if isinstance(node, ast.ImportFrom):
        return any(f"{node.module}.{alias.name}" in _NAMES for alias in node.names) or node.module in _MODULES_OF_LATER
    return isinstance(node, ast.Import) and any(alias.name in _MODULES_OF_LATER for alias in node.names)


@pytest.mark.parametrize(
    "source",
    [
        "zip(a, b, strict=False)",
        "match a:\n    case 1: pass",
        "isinstance(a, int | str)",
        "bisect.bisect_left(a, 1, key=len)",
        "datetime.UTC",
        "from datetime import UTC",
        "@dataclass(frozen=True, slots=True)\nclass A: pass",
        "import tomllib",
        "try: pass\nexcept* OSError: pass",
    ],
)
def test_what_python_3_9_does_not_have_is_found(source: str) -> None:
    assert newer_than_3_9(source)


def test_what_it_has_is_not_found() -> None:
    assert (
        newer_than_3_9(
            "a: int | None = b.removeprefix('x')\nzip(a, b)\nisinstance(a, (int, str))\nsorted(a, key=len)\nb | c"
        )
        == []
    )


def test_nothing_on_hosts_needs_a_newer_python() -> None:
    files = files_on_hosts()
    assert len(files) > 40
    found = {str(file.relative_to(ROOT)): newer_than_3_9(file.read_text()) for file in files}
    assert {file: lines for file, lines in found.items() if lines} == {}


def test_python_3_9_itself_imports_all_of_it() -> None:
    python = next(iter(sorted(Path.home().glob(".pyenv/versions/3.9.*/bin/python3.9"))), None) or shutil.which(
        "python3.9"
    )
    if not python or subprocess.run([python, "-c", ""], check=False, capture_output=True).returncode:
        missing("no python3.9 here")
    names = []
    for file in files_on_hosts():
        if file.name != "__main__.py":
            place = file.relative_to(_AGENT if file.is_relative_to(_AGENT) else ROOT).with_suffix("")
            words = [word for word in place.parts if word != "__init__"]
            names.append(".".join(words if file.is_relative_to(_AGENT) else (*_COLLECTION.split(".")[:-1], *words)))
    collections = Path(next(iter(ansible_collections.convoy.upgrade.__path__))).parents[2]
    places = (str(_AGENT), str(Path(ansible.__file__).parents[1]), str(collections))
    script = "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name)\n"
    done = subprocess.run(
        [python, "-S", "-B", "-c", script, *names],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
