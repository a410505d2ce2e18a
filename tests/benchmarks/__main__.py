# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`make bench`: measure convoy.upgrade, with its peers in the same run.

    python tests/benchmarks [--quick] [--sizes N ...] [--rounds N] [--write FILE] [PART ...]
    python tests/benchmarks --list

All parts run one after the other, and print Markdown tables. No time decides whether a run fails: only numbers of requests do, because they are the same
on every machine, and what a waiting agent takes of the processor time of a timer.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
# In place of this folder, whose files have names of packages in tests.
sys.path[:1] = [str(ROOT / "tools"), str(ROOT / "tests")]

from benchmarks import agent_run, growth, load, outage, page, planners, playbooks, push, rollout, waking
from benchmarks.options import Options
from benchmarks.tables import Report
from lab.lab import blocker

PARTS: Mapping[str, ModuleType] = {
    one.NAME: one for one in (growth, rollout, waking, load, planners, page, playbooks, push, outage, agent_run)
}


def main() -> int:
    """Run parts; return 1 if an operation took other requests than promised, 2 if a part is unknown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="a part to run; all parts if none is given")
    parser.add_argument("--list", action="store_true", help="list the parts")
    parser.add_argument("--quick", action="store_true", help="small fleets, each way once, without the lab")
    parser.add_argument("--sizes", type=int, nargs="+", default=[], metavar="N", help="numbers of hosts")
    parser.add_argument("--rounds", type=int, default=0, metavar="N", help="how often each way is run")
    parser.add_argument("--write", type=Path, metavar="FILE", help="a file for the tables, in Markdown")
    given = parser.parse_args()
    if given.list:
        for name, part in PARTS.items():
            print(f"{name:12}{part.ABOUT}")
        return 0
    unknown = [name for name in given.parts if name not in PARTS]
    if unknown:
        print(f"There is no part {unknown[0]!r}. Next: .venv/bin/python tests/benchmarks --list", file=sys.stderr)
        return 2
    report = Report(given.write)
    options = Options(given.quick, given.rounds, tuple(sorted(set(given.sizes))))
    for name in given.parts or PARTS:
        part = PARTS[name]
        reason = _why_not(part, options, is_asked_for=bool(given.parts))
        if reason:
            report.say(f"\nPart {name} is skipped: {reason}.")
        else:
            part.run(options, report)
    for sentence in report.mistakes:
        print(sentence, file=sys.stderr)
    return 1 if report.mistakes else 0


def _why_not(part: ModuleType, options: Options, *, is_asked_for: bool) -> str | None:
    """Return why a part is skipped, None if it is not."""
    if not part.NEEDS_LAB:
        return None
    if options.quick and not is_asked_for:
        return "it needs the lab of nodes, which --quick leaves out"
    return blocker() or None


if __name__ == "__main__":
    sys.exit(main())
