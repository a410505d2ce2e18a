# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The daemon of a run: a process beside ansible-playbook that answers messages of its tasks and callbacks, and ends with it.

It has up to three parts: the push service, the progress feed of the live view, and the notifier. They share blocking queries to
Consul.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ...module_utils._common import runtime
from ...module_utils._common.errors import UpgradeError
from ...module_utils._consul.settings import Settings
from ...module_utils._consul.watch import BlockingQueries
from .._daemon_client.messages import EndRun, ErrorAnswer, Message
from .._notify.messages import StartNotifier
from .._notify.notifier import Notifier
from .._observe.view_messages import AttachView, FollowProgress, IsShown, WaitForEnd, WaitUntilShown
from .._push.messages import (
    Admit,
    AdmitWave,
    BeginFailure,
    BeginTaskGroup,
    CloseHosts,
    EndHost,
    FailHost,
    FinishTaskGroup,
    GetNextHosts,
    GetRun,
    GetValidation,
    KeepRun,
    NoteTimeout,
    RefuseStop,
    ReportValidation,
    Settle,
    StartPush,
    StopPush,
    Validation,
)
from .._push.prepared_run import PreparedRun
from .._push.service import HostService, PushService
from .progress_feed import ProgressFeed

# A client that was stopped before its first message keeps others waiting for at most so long (seconds).
_LONGEST_TURN = 5.0


class RunDaemon:
    """Answers messages of a run.

    :param folder: the run's folder, which is removed when the run ends.
    """

    def __init__(self, folder: Path) -> None:
        """Keep the folder."""
        self._folder = folder
        self._lock = runtime.lock()
        # If the run ends while its last task waits for the notifier, what is left is still sent.
        self._end_lock = runtime.lock()
        self._queries: dict[Settings, BlockingQueries] = {}
        self._feed = ProgressFeed(self._queries_of)
        self._run: PreparedRun | None = None
        self._validation: dict[str, Validation] = {}
        self._push: HostService | None = None
        self._notifier: Notifier | None = None
        self._answers: dict[type[Message[Any]], Callable[[Any], Any]] = {
            Admit: lambda message: self._push_service().admit(message),
            AdmitWave: lambda message: self._push_service().admit_wave(message),
            BeginTaskGroup: lambda message: self._host_service().begin_task_group(message),
            EndHost: lambda message: self._host_service().end_host(message),
            EndRun: lambda _message: self.end(),
            CloseHosts: lambda message: self._push_service().close_hosts(message),
            BeginFailure: lambda message: self._host_service().begin_failure(message),
            FailHost: lambda message: self._host_service().fail_host(message),
            FinishTaskGroup: lambda message: self._host_service().finish_task_group(message),
            FollowProgress: self._feed.follow,
            GetNextHosts: lambda message: self._push_service().next_hosts(message),
            GetRun: lambda _message: self._prepared(),
            GetValidation: lambda _message: dict(self._validation),
            IsShown: lambda _message: self._feed.is_shown(),
            KeepRun: self._keep_run,
            NoteTimeout: lambda message: self._host_service().note_timeout(message),
            RefuseStop: lambda message: self._host_service().refuse_stop(message),
            ReportValidation: self._keep_validation,
            Settle: lambda message: self._push_service().settle(message, is_shown=self._feed.is_shown()),
            StartNotifier: self._start_notifier,
            StartPush: self._start_push,
            StopPush: lambda _message: self._stop_push(),
            WaitForEnd: lambda _message: self._feed.wait_for_end(),
            WaitUntilShown: self._feed.wait_until_shown,
        }

    def answer(self, message: Message[Any]) -> Any:
        """Return the answer to a message, or a :class:`ErrorAnswer` for any error."""
        try:
            return self._answers[type(message)](message)
        except UpgradeError as error:
            return ErrorAnswer(error.code, error.message, error.details)
        except Exception as error:
            # The task waits for an answer.
            traceback.print_exc()
            place = traceback.extract_tb(error.__traceback__)[-1]
            text = (
                f"The daemon of this run failed at {Path(place.filename).name}:{place.lineno}: {error!r}. This is a bug in convoy.upgrade, "
                "so report this message. Run the same command again to continue."
            )
            # The folder with the log is removed when the run ends.
            return ErrorAnswer("daemon_fault", text, {"traceback": traceback.format_exc()})

    def attach(self, view: Connection) -> None:
        """Send a view all updates over its connection from now on."""
        self._feed.attach(view)

    def end(self) -> tuple[str, ...]:
        """End all parts, remove the folder and return the notifier's warnings."""
        with self._end_lock:
            with self._lock:
                push, self._push = self._push, None
                notifier, self._notifier = self._notifier, None
            with contextlib.suppress(UpgradeError):
                if push is not None:
                    push.close()
            warnings = notifier.finish() if notifier is not None else ()
            shutil.rmtree(self._folder, ignore_errors=True)
            return warnings

    def _queries_of(self, settings: Settings) -> BlockingQueries:
        return self._queries.setdefault(settings, BlockingQueries(settings))

    def _keep_run(self, message: KeepRun) -> None:
        self._run = message.run
        if message.is_new:
            self._validation.clear()

    def _prepared(self) -> PreparedRun:
        if self._run is None:
            raise UpgradeError("no_push", "No run is prepared. Run prepare_run first.")
        return self._run

    def _keep_validation(self, message: ReportValidation) -> None:
        self._validation[message.host] = message.validation

    def _host_service(self) -> HostService:
        if self._push is None:
            raise UpgradeError("no_push", "The push service has not started. Run push_run with state: started first.")
        return self._push

    def _push_service(self) -> PushService:
        service = self._host_service()
        if not isinstance(service, PushService):
            raise UpgradeError(
                "no_push", "On a pull host, no other host is admitted. Run the playbook on a controller."
            )
        return service

    def _start_push(self, message: StartPush) -> None:
        self._stop_push()
        if not message.run.on_host:
            self._push = PushService(message.run, self._queries_of(message.run.settings))
            return
        service = HostService(message.run)
        try:
            service.begin_on_host()
        except UpgradeError:
            service.close()
            raise
        self._push = service

    def _stop_push(self) -> None:
        push, self._push = self._push, None
        if push is not None:
            push.close()

    def _start_notifier(self, message: StartNotifier) -> None:
        with self._lock:
            # A playbook that imports another one starts it twice.
            if self._notifier is None:
                self._notifier = Notifier(message, self._queries_of(message.settings))


def serve(folder: Path, listener: socket.socket, wait_for_run: Callable[[], None]) -> None:
    """Answer messages until the run has ended, then exit.

    :param wait_for_run: returns when ansible-playbook has ended.
    """
    daemon = RunDaemon(folder)

    def end_with_run() -> None:
        wait_for_run()
        daemon.end()
        _exit()

    runtime.start_thread(end_with_run)
    earlier = runtime.event()
    earlier.set()
    while True:
        client, _address = listener.accept()
        begun = runtime.event()
        runtime.start_thread(_answer_all, daemon, Connection(client.detach()), earlier, begun)
        earlier = begun


def _answer_all(daemon: RunDaemon, connection: Connection, earlier: runtime.Event, begun: runtime.Event) -> None:
    """Answer the messages of a connection until it is closed.

    Ansible may have begun to send messages before this process has started, so several connections may wait for it. Without an order, a task
    could ask for the view before the view is attached.

    :param earlier: set when all connections before this one have sent their first messages, and perhaps attached the view.
    :param begun: to be set when this one has too.
    """
    with contextlib.suppress(OSError, EOFError):
        try:
            message = connection.recv()
            if isinstance(message, AttachView):
                # From now on, only the progress feed uses the connection.
                daemon.attach(connection)
                return
            earlier.wait(_LONGEST_TURN)
        finally:
            begun.set()
        while True:
            answer = daemon.answer(message)
            connection.send(answer)
            if isinstance(message, EndRun):
                _exit()
            message = connection.recv()


def _exit() -> None:
    sys.stderr.flush()
    os._exit(0)
