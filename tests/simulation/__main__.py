# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Many simulated nights on all cores, or one of them again.

    python tests/simulation [--nights N] [--other-nights N] [--first SEED]
    python tests/simulation --seed SEED [--without PART,...] [--whole]
    python tests/simulation --job-seed SEED [--without PART,...] [--whole]
    python tests/simulation --post-upgrade-seed SEED [--without PART,...] [--whole]

A night that fails is made smaller and printed in at most 40 lines, with the command that repeats it. With --whole, all of its log, stacks and
keys are printed. The exit code is 1 if a night failed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests"), str(ROOT / "agent")]

from simulation import job_night, night
from simulation.post_upgrade import night as post_upgrade_night
from simulation.shrink import shortest_story
from simulation.story import NightResult, story

# Nights of each kind, by the options with their seeds.
_KINDS: dict[str, ModuleType] = {
    "seed": night,
    "job_seed": job_night,
    "post_upgrade_seed": post_upgrade_night,
}
_MOST_PRINTED = 5
# One of each of these for so many nights of a rollout.
_FOR_EACH_OTHER = 5


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
    for name in _KINDS:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="SEED")
    parser.add_argument(
        "--without", default="", metavar="PART,...", help="what is left out of the night, such as kill,lead"
    )
    parser.add_argument("--whole", action="store_true")
    given = parser.parse_args()
    without = [part for part in given.without.split(",") if part]
    for name, kind in _KINDS.items():
        if (seed := getattr(given, name)) is None:
            continue
        if unknown := set(without) - set(kind.PARTS):
            parser.error(f"--without: there is no part {', '.join(sorted(unknown))}; parts are {', '.join(kind.PARTS)}")
        found: NightResult = kind.run(seed, without)
        is_failed = bool(found.violations)
        print(story(found, without, whole=given.whole) if is_failed else f"seed {seed} ({found.kind}): nothing found")
        return int(is_failed)
    others = given.other_nights if given.other_nights is not None else -(-given.nights // _FOR_EACH_OTHER)
    return many(given.first, given.nights, others)


def many(first: int, nights: int, others: int) -> int:
    """Simulate nights on all cores, and print each that fails."""
    began, failed, done, admissions = time.monotonic(), 0, 0, 0
    tasks = [(name, first + number) for number in range(others) for name in _KINDS if name != "seed"]
    tasks += [("seed", first + number) for number in range(nights)]
    with multiprocessing.Pool(os.cpu_count()) as pool:
        for name, result in pool.imap_unordered(_run, tasks, chunksize=4):
            done += 1
            admissions += result.admissions if isinstance(result, night.Result) else 0
            failed += bool(result.violations)
            if result.violations and failed <= _MOST_PRINTED:
                print("\r" + shortest_story(result, _KINDS[name]))
            _show(done, len(tasks), failed, began)
    print(
        f"\n{nights} nights from seed {first}, {others} of jobs and {others} of post-upgrade tasks: {admissions} admissions, {failed} nights failed"
    )
    return int(bool(failed))


def _run(task: tuple[str, int]) -> tuple[str, NightResult]:
    """Return the kind and the result of a night."""
    name, seed = task
    kind = _KINDS[name]
    try:
        return name, kind.run(seed)
    except Exception as error:
        again = f"Next: .venv/bin/python tests/simulation --{name.replace('_', '-')} {seed}"
        raise RuntimeError(f"The harness of a night failed: {error!r}. {again}") from error


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
