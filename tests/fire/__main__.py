# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Many runs under fire, one after the other, and the figures of all of them.

    python tests/fire [--runs N] [--first SEED]

It needs root, as the cluster is a lab. A run that finds something, or that can't be judged, prints its seed; the exit code
is the number of such runs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests")]

from fire.run import Result, run
from lab.guard import guarded


def main() -> int:
    """Run them all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--first", type=int, default=1, metavar="SEED")
    given = parser.parse_args()
    faults: Counter[str] = Counter()
    events: Counter[str] = Counter()
    admissions = writes = views = bad = 0
    began = time.monotonic()
    last = given.first + given.runs
    for seed, result in _results(given.first, last):
        if isinstance(result, Exception):
            bad += 1
            print(f"seed {seed}: could not be judged: {result!r}", flush=True)
            continue
        faults += result.faults
        events += result.events
        admissions, writes, views = admissions + result.admissions, writes + result.writes, views + result.views
        bad += bool(result.violations)
        counts = f"{result.admissions} admissions, {result.writes} writes, {result.views} views"
        found = f"{len(result.violations)} violations" if result.violations else "nothing found"
        print(f"seed {seed} ({result.kind}): {result.seconds:.0f} s, {_listed(result.faults)}; {counts}; {found}")
        for sentence in result.violations:
            print(f"    {sentence}")
        sys.stdout.flush()
    print(
        f"\n{given.runs} runs in {(time.monotonic() - began) / 60:.0f} minutes, {bad} of them with violations or not judged"
    )
    print(f"{sum(faults.values())} faults: {_listed(faults)}")
    print(f"{admissions} admissions, {writes} writes judged, {views} views of the servers compared with them")
    print(f"{sum(events.values())} entries of the history: {_listed(events)}")
    return min(bad, 100)


def _results(seed: int, last: int) -> Iterator[tuple[int, Result | Exception]]:
    """Run all seeds up to the last one; return what each came to, or why it could not be judged."""
    name = f"fire-nightly{seed}"
    while seed < last:
        with guarded(name) as lab:
            lab.up({}, servers=3)
            is_sound = True
            while seed < last and is_sound:
                try:
                    result: Result | Exception = run(lab, seed)
                except (AssertionError, OSError, RuntimeError) as error:
                    # As where a busy machine leaves the cluster without a leader: the others get a new one.
                    result, is_sound = error, False
                yield seed, result
                seed += 1


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


if __name__ == "__main__":
    sys.exit(main())
