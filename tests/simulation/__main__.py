# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Many simulated nights on all cores, or one of them again.

    python tests/simulation [--nights N] [--other-nights N] [--first SEED]
    python tests/simulation --seed SEED [--without PART,...]
    python tests/simulation --job-seed SEED
    python tests/simulation --post-upgrade-seed SEED

A night that fails is made smaller and printed as a log, with the command that repeats it. The exit code is 1 if a night failed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests"), str(ROOT / "agent")]

from simulation import job_night
from simulation.night import PARTS, Result, run
from simulation.post_upgrade import night as post_upgrade_night
from simulation.shrink import described, shrink

# Nights besides those of a rollout, by the options with their seeds.
_OTHERS: dict[str, ModuleType] = {"job_seed": job_night, "post_upgrade_seed": post_upgrade_night}
_MOST_PRINTED = 5
# One of each of these for so many nights of a rollout.
_FOR_EACH_OTHER = 20


def main() -> int:
    """Simulate them all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nights", type=int, default=1000)
    parser.add_argument(
        "--other-nights",
        type=int,
        metavar="N",
        help=f"of jobs, and as many of post-upgrade tasks; one for {_FOR_EACH_OTHER} nights if not given",
    )
    parser.add_argument("--first", type=int, default=int(time.time()), metavar="SEED")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--job-seed", type=int, metavar="SEED")
    parser.add_argument("--post-upgrade-seed", type=int, metavar="SEED")
    parser.add_argument("--without", default="", metavar="PART,...", help=f"parts are {', '.join(PARTS)}")
    given = parser.parse_args()
    without = [part for part in given.without.split(",") if part]
    if unknown := set(without) - set(PARTS):
        parser.error(f"--without: there is no part {', '.join(sorted(unknown))}; parts are {', '.join(PARTS)}")
    for name, kind in _OTHERS.items():
        if (seed := getattr(given, name)) is not None:
            found = kind.run(seed)
            print(kind.described(found) if found.violations else f"seed {seed}: nothing found")
            return int(bool(found.violations))
    if given.seed is not None:
        result = run(given.seed, without)
        print(described(result, without) if result.violations else f"seed {given.seed} ({result.kind}): nothing found")
        print(result.stuck)
        return int(bool(result.violations))
    others = given.other_nights if given.other_nights is not None else -(-given.nights // _FOR_EACH_OTHER)
    return many(given.first, given.nights, others)


def many(first: int, nights: int, others: int) -> int:
    """Simulate nights on all cores, and print each that fails."""
    began, failed, done, admissions = time.monotonic(), 0, 0, 0
    # The others take longer, so none of them begins as the last one.
    tasks = [(name, first + number) for number in range(others) for name in _OTHERS]
    tasks += [("", first + number) for number in range(nights)]
    with multiprocessing.Pool(os.cpu_count()) as pool:
        for result, text in pool.imap_unordered(_run, tasks, chunksize=4):
            done += 1
            admissions += result.admissions if isinstance(result, Result) else 0
            failed += bool(result.violations)
            if result.violations and failed <= _MOST_PRINTED:
                print("\r" + (described(*shrink(result)) if isinstance(result, Result) else text))
            _show(done, len(tasks), failed, began)
    print(
        f"\n{nights} nights from seed {first}, {others} of jobs and {others} of post-upgrade tasks: {admissions} admissions, {failed} nights failed"
    )
    return int(bool(failed))


def _run(task: tuple[str, int]) -> tuple[Any, str]:
    """Return the result of a night, and what is printed of one that is not of a rollout if it fails."""
    name, seed = task
    if not name:
        return run(seed), ""
    result = _OTHERS[name].run(seed)
    return result, _OTHERS[name].described(result) if result.violations else ""


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
