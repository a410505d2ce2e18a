# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Many runs under fire, one after the other, and the figures of all of them.

    python tests/fire [--runs N] [--first SEED]

It needs root, as the cluster is a lab. A run that finds something prints its seed; the exit code is the number of such runs.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests")]

from fire.run import run  # noqa: E402  the path comes first
from lab.guard import guarded  # noqa: E402


def main() -> int:
    """Run them all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--first", type=int, default=1, metavar="SEED")
    given = parser.parse_args()
    faults: Counter[str] = Counter()
    openings = views = bad = 0
    with guarded("fire-nightly") as lab:
        lab.up({}, servers=3)
        for seed in range(given.first, given.first + given.runs):
            result = run(lab, seed)
            faults += result.faults
            openings, views, bad = openings + result.openings, views + result.views, bad + bool(result.violations)
            found = "; ".join(result.violations) or "nothing found"
            print(f"seed {seed}: {result.seconds:.0f} s, {sum(result.faults.values())} faults, {found}", flush=True)
    shown = ", ".join(f"{count} {name}" for name, count in sorted(faults.items()))
    print(f"{given.runs} runs, {sum(faults.values())} faults ({shown}), {openings} openings, {views} views of the keys")
    print(f"{bad} runs with violations")
    return min(bad, 100)


if __name__ == "__main__":
    sys.exit(main())
