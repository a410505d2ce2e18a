# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver of a run: one process that plans and records for all hosts which Ansible upgrades in that run.

It lasts as long as ansible-playbook does, however that ends, and keeps nothing that is not in Consul.
"""

from __future__ import annotations

import contextlib
import json
import os
import socketserver
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...module_utils._common.errors import UpgradeError
from ...module_utils._host_states.states import UPGRADED
from .._observe.progress_lines import PassProgress, running_count
from .admission import TAKEN, RunAdmission, Verdict
from .connections import StorePool
from .host_runs import HostRuns
from .ipc import SOCKET
from .run import PushRun
from .session import RunSession


class PushDaemon:
    """What the tasks of a run can ask for, by name."""

    def __init__(self, run: PushRun) -> None:
        """Open the session with Consul.

        :raises UpgradeError: whatever keeps it from that.
        """
        self._run = run
        self._pool = StorePool(run.settings)
        self.session = RunSession(self._pool, self._taken)
        self._turns = HostRuns(run, self._pool, self.session)
        self._admission = RunAdmission(run, self._pool, self.session.claim)
        self._progress = PassProgress()
        self._partial: set[str] = set()
        self.closed = threading.Event()

    def close(self) -> None:
        """End the session with Consul, and what is watched there."""
        self._admission.close()
        self.session.close()

    def answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a message."""
        options = dict(message)
        act: Callable[..., dict[str, Any]] = getattr(self, f"do_{options.pop('do')}")
        return act(**options)

    def do_admit(self, host: str) -> dict[str, Any]:
        """Wait until a host may go."""
        return self._begin(host, self._admission.admit(host))

    def do_wave(self, hosts: list[str]) -> dict[str, Any]:
        """Wait until hosts may go together."""
        verdicts = self._admission.admit_wave(hosts)
        return {"hosts": {host: self._begin(host, verdicts[host], together=True) for host in hosts}}

    def do_step(self, host: str, unit: str, chosen: bool, whole: bool, skipped: bool) -> dict[str, Any]:
        """Begin a unit on a host."""
        run, why = self._turns.step(host, unit, chosen=chosen, whole=whole, skipped=skipped)
        return {"run": run, "why": why}

    def do_finish(self, host: str, unit: str) -> dict[str, Any]:
        """Say that a host is through a unit."""
        self._turns.finish(host, unit)
        return {}

    def do_end(self, host: str) -> dict[str, Any]:
        """End a host's turn."""
        state = self._turns.end(host)
        if state == "partial":
            self._partial.add(host)
        self._admission.ended(host)
        return {"state": state}

    def do_fail(self, host: str, error: str) -> dict[str, Any]:
        """Record that a host failed."""
        try:
            self._turns.fail(host, error)
        finally:
            # What can't be recorded is no reason for others to wait for this host.
            self._admission.ended(host)
        return {}

    def do_close(self) -> dict[str, Any]:
        """End the session, and with it all claims; the process ends when it has answered."""
        self.close()
        self.closed.set()
        return {}

    def do_settle(self, seconds: float, hosts: list[str]) -> dict[str, Any]:
        """Wait for hosts, those that upgrade themselves above all; return what changed, in lines."""
        done, can_move, look = self._admission.settle(hosts, seconds)
        shown = {
            "version": self._run.version,
            "hosts": {
                host: {"role": view.role, "state": view.state, "reason": view.reason}
                for host, view in look.hosts.items()
            },
        }
        answer: dict[str, Any] = {"done": done, "can_move": can_move, "lines": self._progress.lines(shown)}
        if not done:
            left = [host for host in hosts if look.hosts[host].state != UPGRADED]
            answer |= {
                "count": running_count(shown)[3:],
                "obstacles": self._admission.explain(look, left),
                "partial": [host for host in left if host in self._partial],
                "unfinished": left,
            }
        return answer

    def _begin(self, host: str, verdict: Verdict, *, together: bool = False) -> dict[str, Any]:
        done: list[str] = []
        if verdict.go:
            try:
                done = list(self._turns.begin(host, together=together).done)
            except UpgradeError as error:
                if error.code != "not_admitted":
                    raise
                # As after a hold or an abort that came since the pass.
                verdict = Verdict(go=False, state=verdict.state, reason=str(error.details["reason"]))
        answer: dict[str, Any] = {"go": verdict.go, "state": verdict.state, "reason": verdict.reason}
        if verdict.go:
            answer["done"] = done
        else:
            if verdict.state != TAKEN:
                self.session.release(host)
            self._admission.ended(host)
        return answer

    def _taken(self) -> list[str]:
        return self._turns.taken()


class _Handler(socketserver.StreamRequestHandler):
    """One question, one answer."""

    server: _Server

    def handle(self) -> None:
        """Answer it; whatever goes wrong is an answer too."""
        text = self.rfile.readline()
        if not text:
            return
        try:
            answer = self.server.driver.answer(json.loads(text))
        except UpgradeError as error:
            answer = {"failure": error.as_failure()}
        except Exception as error:
            # A task waits for an answer, whatever happened.
            traceback.print_exc()
            what = f"The driver of this run stumbled: {error!r}. This is a fault of convoy.upgrade; its log has more."
            answer = {"failure": {"code": "driver_fault", "message": what, "details": {}}}
        with contextlib.suppress(OSError):
            self.wfile.write(json.dumps(answer).encode() + b"\n")


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Listens on the line."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, path: str, driver: PushDaemon) -> None:
        self.driver = driver
        super().__init__(path, _Handler)


def serve_run(run: PushRun, wait_for_end: Callable[[], None], ready: Callable[[], None]) -> None:
    """Drive until the run ends.

    :param wait_for_end: returns when it has.
    :param ready: called once the driver listens.
    :raises UpgradeError: what keeps the driver from starting.
    """
    driver = PushDaemon(run)
    server = _Server(str(Path(run.folder) / SOCKET), driver)

    def watch() -> None:
        wait_for_end()
        driver.closed.set()

    def finish() -> None:
        driver.closed.wait()
        # The one who asked for it gets an answer first.
        time.sleep(0.1)
        driver.close()
        (Path(run.folder) / SOCKET).unlink(missing_ok=True)
        sys.stderr.flush()
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
    threading.Thread(target=finish, daemon=True).start()
    ready()
    server.serve_forever()
