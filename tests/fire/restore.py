# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A snapshot that is taken on the way and restored later, with all at work.

Everybody is stopped while Consul restores, so that nothing is on its way then; they wake up in the middle of what they
were at. What was admitted since the snapshot is forgotten with it, and hosts that report after that are down or not
whatever the keys say, so nothing is demanded of caps by the hosts' own state; but of the keys, all that is demanded else.
A planner that has seen a newer epoch has to stop, and is started again by an operator who knows of the restore.
"""

from __future__ import annotations

import base64
import io
import json
import signal
import tarfile
import time
from collections.abc import Mapping, Sequence

from devkit.kv import RawKV

from .cluster import once_led
from .journal import Journal, Write
from .processes import WENT_BACK, Child
from .replay import Restore

MARK = "fire/restored"
_SECONDS = 30


class Restorer:
    """Takes one snapshot, and restores it.

    :param children: all that are at work, the planners among them.
    """

    def __init__(self, url: str, journal: Journal, planners: Sequence[Child], children: Sequence[Child]) -> None:
        self._kv = RawKV(url)
        self._journal = journal
        self._planners = planners
        self._children = children
        self._due = time.monotonic() + 3
        self._snapshot = b""
        self.restores: list[Restore] = []
        self.went_back = 0
        self.problems: list[str] = []

    def is_due(self) -> bool:
        """Return whether it is time for the snapshot, or to restore it."""
        return not self.restores and time.monotonic() > self._due

    def go_on(self) -> int:
        """Take the snapshot, or restore it; return how many were restored. The cluster has to be whole."""
        if not self._snapshot:
            code, _headers, body = self._kv.call("GET", "snapshot")
            if code == 200:
                self._snapshot = body
                self._due = time.monotonic() + 4
            return 0
        # A moment for those who are at work to see what there is.
        time.sleep(1.5)
        for child in self._children:
            child.signal(signal.SIGSTOP)
        try:
            stopped = self._restore() if self._journal.is_quiet(20) else {}
        finally:
            for child in self._children:
                child.signal(signal.SIGCONT)
        self._expect_end(stopped)
        return len(self.restores)

    def _restore(self) -> dict[Child, int]:
        """Restore, and return the planners that have seen a newer epoch than there is now, with that epoch."""
        with tarfile.open(fileobj=io.BytesIO(self._snapshot)) as archive:
            meta = archive.extractfile("meta.json")
            assert meta is not None
            taken_at = json.loads(meta.read())["Index"]
        # All are stopped, so it does no harm twice.
        once_led(self._put_back)
        until = time.monotonic() + _SECONDS
        while not self._mark(taken_at):
            assert time.monotonic() < until, "the cluster has no leader after a restore"
            time.sleep(0.1)
        ledger = self._kv.get("upgrade/ledger")
        epoch = json.loads(ledger)["epoch"] if ledger is not None else 0
        seen = {one: one.shared.epoch.value for one in self._planners if one.code is None}
        return {one: newest for one, newest in seen.items() if newest > epoch}

    def _put_back(self) -> None:
        code, _headers, body = self._kv.call("PUT", "snapshot", self._snapshot)
        if code != 200:
            raise RuntimeError(f"{code}: {body!r}")

    def _mark(self, taken_at: int) -> bool:
        """Write a key, so that its index shows what comes after the restore."""
        value = base64.b64encode(b"1").decode()
        operation = {"Verb": "set", "Key": MARK, "Value": value}
        code, _headers, body = self._kv.call("PUT", "txn", [{"KV": operation}])
        if code != 200:
            return False
        index = json.loads(body)["Results"][0]["KV"]["ModifyIndex"]
        mark = Write("harness", [operation], None, index=index, is_known=True, answered_at=time.time())
        self._journal.writes.append(mark)
        self.restores.append(Restore(index - 1, taken_at))
        return True

    def _expect_end(self, stopped: Mapping[Child, int]) -> None:
        """Wait until each of these planners has stopped by itself, and start it again.

        :param stopped: planner -> the epoch that it had seen.
        """
        until = time.monotonic() + _SECONDS
        for planner, epoch in stopped.items():
            planner.process.join(max(0.1, until - time.monotonic()))
            if planner.code != WENT_BACK:
                how = "goes on" if planner.code is None else f"ended with {planner.code}"
                self.problems.append(f"{planner.name} had seen epoch {epoch} before the restore, and {how}")
                planner.kill()
            self.went_back += planner.code == WENT_BACK
            planner.start()
