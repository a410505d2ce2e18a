# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All checks of the project, with their commands in `make test` and in `make test-all`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

# `make test` leaves out tests marked `thorough`.
_QUICK = ("-m", "not thorough")
_BY_FILE = ("--dist", "loadfile", "--no-loadscope-reorder")
_PROCESSES = 2


@dataclass(frozen=True, slots=True)
class Check:
    """A check.

    :param commands: commands of `make test-all`, in order. A ``pytest`` command also gets the path of its report.
    :param quick: commands of `make test`; empty if it leaves the check out.
    :param lab: whether it needs the lab of nodes. Without the lab, it is skipped.
    """

    name: str
    commands: tuple[tuple[str, ...], ...]
    quick: tuple[tuple[str, ...], ...]
    lab: bool = False


def _same(name: str, *commands: tuple[str, ...]) -> Check:
    return Check(name, commands, commands)


def _tests(name: str, processes: int, *words: str, lab: bool = False) -> Check:
    """Return a check of tests. `make test` leaves out those marked ``thorough``.

    :param processes: in `make test`. In `make test-all`, two have enough to do, and more of them would take the processor from tests that have
        to see something within a time.
    """
    whole, quick = (("pytest", "-q", "-n", str(one), *words) for one in (_PROCESSES, processes))
    return Check(name, (whole,), ((*quick, *_QUICK),), lab)


_SEEN = ("--seen", "{work}")

# Checks with the lab mostly wait for nodes, and those in the other list use the processor. One of each list runs at a time.
LAB = (
    _tests("nodes", 3, *_BY_FILE, "tests/nodes", lab=True),
    _tests("services", 3, *_BY_FILE, "tests/services", lab=True),
    # Only some of push needs the lab; those tests skip themselves.
    _tests("push", 3, "tests/push"),
    _tests("fire", 2, "tests/fire", lab=True),
    Check("molecule", (("tools/checks/molecule.sh",),), (), lab=True),
    Check(
        "matrix",
        (("tools/checks/matrix.sh", "--reports", "{work}"),),
        (("tools/checks/matrix.sh", "--reports", "{work}", "--quick"),),
    ),
)
OTHERS = (
    _same("style", ("ruff", "check", "."), ("ruff", "format", "--check", ".")),
    _same("types", ("tools/checks/types.sh",)),
    _same("changelog", ("antsibull-changelog", "lint")),
    _same("docs", ("antsibull-docs", "lint-collection-docs", "--plugin-docs", "--validate-collection-refs=self", ".")),
    _tests("unit", 2, "tests/unit"),
    _tests("simulation", 2, "tests/simulation"),
    # The last file checks what all other files have used and seen.
    Check(
        "integration",
        (
            (
                "pytest",
                "-q",
                "-n",
                str(_PROCESSES),
                *_BY_FILE,
                "tests/integration",
                "--ignore",
                "tests/integration/playbooks/test_reference.py",
                *_SEEN,
            ),
            ("pytest", "-q", "tests/integration/playbooks/test_reference.py", *_SEEN),
        ),
        (("pytest", "-q", "-n", "3", *_BY_FILE, *_QUICK, "--in-process", "tests/integration"),),
    ),
    # One process each: they come late, so that both lanes have something to do until the end.
    _same("lint", ("ansible-lint",)),
    Check("sanity", (("tools/checks/sanity.sh",),), (("tools/checks/sanity.sh", "--quick"),)),
    _same("artifact", ("tools/checks/artifact.sh",)),
    Check("site", (("tools/site/build.sh",),), ()),
    _same("demo", ("python", "tools/demo")),
    Check("benchmarks", (("python", "tests/benchmarks", "--quick"),), ()),
)


def named(names: list[str]) -> Iterator[Check]:
    """Return the checks with these names.

    :raises KeyError: with the first unknown name.
    """
    known = {one.name: one for one in (*OTHERS, *LAB)}
    for name in names:
        yield known[name]
