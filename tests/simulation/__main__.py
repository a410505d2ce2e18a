# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Many simulated nights on all cores, or one of them again.

    python tests/simulation [--nights N] [--job-nights N] [--first SEED]
    python tests/simulation --seed SEED [--without PART,...]
    python tests/simulation --job-seed SEED

A night that fails is made smaller and printed as a log, with the command that repeats it. The exit code is 1 if a night failed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests"), str(ROOT / "agent")]

from simulation import job_night
from simulation.night import PARTS, Result, run
from simulation.shrink import described, shrink

_MOST_PRINTED = 5
# One night of jobs for so many others.
_FOR_EACH_OF_JOBS = 20


def main() -> int:
    """Simulate them all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nights", type=int, default=1000)
    parser.add_argument("--job-nights", type=int, metavar="N", help=f"one for {_FOR_EACH_OF_JOBS} others if not given")
    parser.add_argument("--first", type=int, default=int(time.time()), metavar="SEED")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--job-seed", type=int, metavar="SEED")
    parser.add_argument("--without", default="", metavar="PART,...", help=f"parts are {', '.join(PARTS)}")
    given = parser.parse_args()
    without = [part for part in given.without.split(",") if part]
    if unknown := set(without) - set(PARTS):
        parser.error(f"--without: there is no part {', '.join(sorted(unknown))}; parts are {', '.join(PARTS)}")
    if given.job_seed is not None:
        found = job_night.run(given.job_seed)
        print(job_night.described(found) if found.violations else f"seed {found.seed} (jobs): nothing found")
        return int(bool(found.violations))
    if given.seed is not None:
        result = run(given.seed, without)
        print(described(result, without) if result.violations else f"seed {given.seed} ({result.kind}): nothing found")
        print(result.stuck)
        return int(bool(result.violations))
    of_jobs = given.job_nights if given.job_nights is not None else -(-given.nights // _FOR_EACH_OF_JOBS)
    return many(given.first, given.nights, of_jobs)


def many(first: int, nights: int, of_jobs: int) -> int:
    """Simulate nights on all cores, and print each that fails."""
    began, failed, done, admissions = time.monotonic(), 0, 0, 0
    # Those of jobs take longer, so none of them begins as the last one.
    tasks = [(True, first + number) for number in range(of_jobs)] + [
        (False, first + number) for number in range(nights)
    ]
    with multiprocessing.Pool(os.cpu_count()) as pool:
        for result in pool.imap_unordered(_run, tasks, chunksize=4):
            done += 1
            admissions += result.admissions if isinstance(result, Result) else 0
            failed += bool(result.violations)
            if result.violations and failed <= _MOST_PRINTED:
                _print(result)
            _show(done, len(tasks), failed, began)
    print(f"\n{nights} nights and {of_jobs} of jobs from seed {first}: {admissions} admissions, {failed} nights failed")
    return int(bool(failed))


def _run(task: tuple[bool, int]) -> Result | job_night.JobResult:
    is_of_jobs, seed = task
    return job_night.run(seed) if is_of_jobs else run(seed)


def _print(result: Result | job_night.JobResult) -> None:
    print("\r" + (described(*shrink(result)) if isinstance(result, Result) else job_night.described(result)))


def _show(done: int, count: int, failed: int, began: float) -> None:
    """Draw a bar on a terminal."""
    if not sys.stdout.isatty():
        return
    seconds = time.monotonic() - began
    done_part = "=" * (40 * done // count)
    left = seconds / done * (count - done)
    print(f"\r[{done_part:40}] {done} of {count}, {failed} failed, {left / 60:.0f} minutes left ", end="", flush=True)


if __name__ == "__main__":
    sys.exit(main())
