# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the checks of the project, two at a time, and print which one runs, its duration and its skipped tests.

`make test` checks the whole product in a quarter of an hour, `make test-all` runs everything. A check that can't run on
this machine is skipped with the reason. With CONVOY_TEST_STRICT=1, that is a failure.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests")]

from devkit.guard import run_guarded
from lab.lab import blocker
from missing import is_strict

from checks.catalog import LAB, OTHERS, Check, named
from checks.outcome import Outcome, read


class Checks:
    """A run of some checks.

    :param work: a temporary folder of the run.
    :param lanes: lists of checks; one of each list runs at a time.
    """

    def __init__(self, work: Path, lanes: Sequence[Sequence[Check]], *, quick: bool) -> None:
        """Remember what to run."""
        self._work = work
        self._lanes = [[*lane] for lane in lanes]
        self._quick = quick
        self._alone = sum(map(len, lanes)) == 1
        self._lock = threading.Lock()
        self.outcomes: list[Outcome] = []
        self._processor: dict[str, float] = {}

    def run(self) -> None:
        """Run them all. A lane that has none left takes from the others."""
        threads = [threading.Thread(target=self._work_off, args=(lane,)) for lane in self._lanes]
        for one in threads:
            one.start()
        for one in threads:
            one.join()

    def _work_off(self, lane: list[Check]) -> None:
        while check := self._next(lane):
            outcome = self._run(check)
            with self._lock:
                self.outcomes.append(outcome)

    def _next(self, lane: list[Check]) -> Check | None:
        with self._lock:
            for one in (lane, *self._lanes):
                if one:
                    return one.pop(0)
        return None

    def _run(self, check: Check) -> Outcome:
        if check.lab and (reason := _lab_blocker()) and not is_strict():
            self._say(f"== {check.name}: skipped, as {reason}")
            return Outcome(check.name, ok=True, skipped=reason)
        self._say(f"== {check.name} ...")
        began = time.monotonic()
        folder = self._work / check.name
        folder.mkdir()
        ok = True
        for number, command in enumerate(check.quick if self._quick else check.commands):
            # All of them, or a failure would hide those of the next command.
            ok = self._call(check, folder, number, command) and ok
        outcome = read(check.name, ok, time.monotonic() - began, sorted(folder.glob("*.xml")))
        if not ok and not self._alone:
            self._say((folder / "log").read_text(errors="replace"))
        self._say(
            f"== {check.name}: {'passed' if ok else 'FAILED'} in {outcome.seconds:.0f} s, "
            f"{self._processor[check.name]:.0f} s of processor" + (f" ({outcome.counts})" if outcome.counts else ""),
            *(f"   skipped {count}: {reason}" for reason, count in outcome.reasons.items()),
        )
        return outcome

    def _call(self, check: Check, folder: Path, number: int, command: Sequence[str]) -> bool:
        words = [word.format(work=folder) for word in command]
        if words[0] == "pytest":
            words.append(f"--junitxml={folder}/{number}.xml")
        with (folder / "log").open("ab") as log:
            out = None if self._alone else log
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=ROOT)
            # wait4 also returns the processor time of the process and its children.
            _pid, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self._processor[check.name] = self._processor.get(check.name, 0) + used.ru_utime + used.ru_stime
        return process.returncode == 0

    def _say(self, *lines: str) -> None:
        with self._lock:
            print("\n".join(lines), flush=True)


_lab_blocker = cache(blocker)


def summary(outcomes: Sequence[Outcome], seconds: float, target: str) -> list[str]:
    """Return the last lines of a run."""
    bad = sorted(one.name for one in outcomes if not one.ok)
    skipped = [one.name for one in outcomes if one.skipped]
    passed, failed = sum(one.passed for one in outcomes), sum(one.failed for one in outcomes)
    tests_skipped = sum(one.reasons.total() for one in outcomes)
    lines = ["", f"tests: {passed} passed, {failed} failed, {tests_skipped} skipped"]
    if bad:
        lines.append(f"Next: tools/test.sh {'--quick ' if target == 'make test' else ''}{' '.join(bad)}")
    ended = f"FAILED ({', '.join(bad)})" if bad else "passed"
    left_out = f"{len(skipped)} checks skipped ({', '.join(skipped)})" if skipped else "no check skipped"
    lines.append(
        f"{target} {ended} in {seconds:.0f} s: {len(outcomes) - len(bad) - len(skipped)} checks and {passed} tests passed, "
        f"{left_out}, {tests_skipped} tests skipped"
    )
    return lines


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="tools/test.sh", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="what `make test` runs of each check")
    parser.add_argument("--list", action="store_true", help="list the checks, and run none")
    parser.add_argument("names", nargs="*", metavar="CHECK", help="only these checks")
    given = parser.parse_args()
    try:
        # Checks given by name run one after the other.
        lanes = [[*named(given.names)]] if given.names else [OTHERS, LAB]
    except KeyError as unknown:
        print(f"tools/test.sh: there is no check {unknown}. Next: tools/test.sh --list", file=sys.stderr)
        return 2
    if given.quick:
        lanes = [[one for one in lane if one.quick] for lane in lanes]
    if given.list:
        print("\n".join(one.name for lane in lanes for one in lane))
        return 0
    # A short path, because sockets are below it, and the kernel limits the length of their paths.
    folder = Path(tempfile.mkdtemp(prefix="cv-"))
    os.environ.update(
        TMPDIR=str(folder),
        # After `su`, Debian's PATH has no folder sbin, and the lab needs chroot.
        PATH=os.pathsep.join((str(ROOT / ".venv/bin"), os.environ["PATH"], "/usr/sbin", "/sbin")),
        NO_COLOR="1",
        ANSIBLE_NOCOLOR="1",
        CONVOY_LAB_NAME=f"molecule-{os.getpid()}",
        MOLECULE_EPHEMERAL_DIRECTORY=str(folder / "molecule"),
    )

    def act() -> int:
        began = time.monotonic()
        # test.sh sets its start time, so that the total includes setup.sh.
        before = time.time() - float(os.environ.get("CONVOY_TEST_BEGAN", time.time()))
        (folder / "checks").mkdir()
        checks = Checks(folder / "checks", lanes, quick=given.quick)
        checks.run()
        target = "tools/test.sh" if given.names else "make test" if given.quick else "make test-all"
        print("\n".join(summary(checks.outcomes, before + time.monotonic() - began, target)))
        return 0 if all(one.ok for one in checks.outcomes) else 1

    try:
        return run_guarded(act, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
