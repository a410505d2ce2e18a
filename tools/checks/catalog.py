# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All checks of the project, with their commands in `make test` and in `make test-all`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

# `make test` leaves out tests marked `thorough`.
_QUICK = ("-m", "not thorough")


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


def _tests(name: str, *commands: tuple[str, ...], lab: bool = False) -> Check:
    """Return a check of pytest commands. `make test` leaves out its tests marked ``thorough``."""
    return Check(
        name,
        tuple(("pytest", "-q", *one) for one in commands),
        tuple(("pytest", "-q", *_QUICK, *one) for one in commands),
        lab,
    )


def _by_file(processes: int, *files: str) -> tuple[str, ...]:
    return ("-n", str(processes), "--dist", "loadfile", "--no-loadscope-reorder", *files)


_SEEN = ("--seen", "{work}")

# Checks with the lab mostly wait for nodes, and those in the other list use the processor. One of each list runs at a time.
LAB = (
    _tests("nodes", _by_file(3, "tests/nodes"), lab=True),
    _tests("services", _by_file(3, "tests/services"), lab=True),
    # Only some of push needs the lab; those tests skip themselves.
    _tests("push", ("-n", "3", "tests/push")),
    _tests("fire", ("-n", "2", "tests/fire"), lab=True),
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
    _tests("unit", ("-n", "2", "tests/unit")),
    _tests("simulation", ("-n", "2", "tests/simulation")),
    # The last file checks what all other files have used and seen.
    Check(
        "integration",
        (
            (
                "pytest",
                "-q",
                *_by_file(3, "tests/integration"),
                "--ignore",
                "tests/integration/playbooks/test_reference.py",
                *_SEEN,
            ),
            ("pytest", "-q", "tests/integration/playbooks/test_reference.py", *_SEEN),
        ),
        (("pytest", "-q", *_QUICK, "--in-process", *_by_file(3, "tests/integration")),),
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
