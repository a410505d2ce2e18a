# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The jobs that this node has begun, on its own disk: what ran does not run again, whatever Consul says.

An entry is written before the command starts. If its process is gone and it still says so, the result of that run is unknown.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Optional

from ..machine.errors import sanitize
from ..machine.processes import kill_session, kill_tree, start_ticks
from ..node import state
from ..node.gate import is_job_id
from .job import MOST_SECONDS, NodeJob
from .refusals import Refused
from .trusted_files import refuse_untrusted_folder

STARTING, STARTED, DONE, FAILED, LOST = "starting", "started", "done", "failed", "lost"
ENDED = (DONE, FAILED, LOST)
_STATES = (STARTING, STARTED, *ENDED)
_MOST_BYTES = 65536
# The latest expiry of the jobs whose entries were removed.
_FORGOTTEN = "forgotten"
# The end of the year 9999.
_LATEST_SHOWN = 253_402_300_799


@dataclass(frozen=True)
class JobEntry:
    """One job on this node.

    :param state: ``starting`` before Consul knows, ``started`` before the command runs, then how it ended.
    :param run: a random ID of this run, which is in the host's record too.
    :param boot: the boot in which it began.
    :param pid: the process that runs it, and when that process started (``ticks``).
    :param child: the command's own process, 0 before it started, and when it started (``child_ticks``).
    :param at: when it began (unix seconds).
    :param ended: when it ended; 0 before that.
    :param is_reported: whether its end is in Consul.
    :param has_run: False if its command could not be started.
    :param is_repeatable: whether the command may run again after it failed, or was lost.
    """

    id: str
    command: str
    expires: int
    state: str
    run: str
    attempt: int = 1
    boot: str = ""
    pid: int = 0
    ticks: int = 0
    child: int = 0
    child_ticks: int = 0
    at: int = 0
    ended: int = 0
    seconds: float = 0.0
    exit_status: Optional[int] = None
    error: str = ""
    output: str = ""
    is_reported: bool = False
    has_run: bool = True
    is_repeatable: bool = True

    @property
    def is_final(self) -> bool:
        """Whether it failed or was lost, and does not run again."""
        return self.state in (FAILED, LOST) and self.has_run and not self.is_repeatable

    @property
    def is_running(self) -> bool:
        """Whether the process that runs it still lives."""
        return self.state not in ENDED and self.boot == state.boot_id() and start_ticks(self.pid) == self.ticks

    def kill_command(self) -> bool:
        """Kill the command that outlived the process that ran it; return whether there was one."""
        if not self.child or self.boot != state.boot_id():
            return False
        is_there = start_ticks(self.child) == self.child_ticks
        if is_there:
            kill_tree(self.child)
        # What it has started may outlive it, in its session.
        return kill_session(self.child, f"CONVOY_JOB={self.id}") or is_there


def own_process() -> dict[str, Any]:
    """Return the fields of an entry that identify this process."""
    return {"boot": state.boot_id(), "pid": os.getpid(), "ticks": start_ticks(os.getpid()) or 0}


class Spool:
    """The folder with an entry for each job."""

    def __init__(self, folder: str = f"{state.FOLDER}/jobs") -> None:
        """Remember the folder; nothing is read yet."""
        self.folder = Path(folder)

    def prepare(self) -> None:
        """Create the folder.

        :raises Refused: if it can't be created, or other users can change it.
        """
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise Refused(
                f"{self.folder} can't be created: {error.strerror}. Without it, this node can't tell which jobs it has run. Make room, or "
                "correct the disk."
            ) from None
        refuse_untrusted_folder(self.folder)

    def read(self, identifier: str) -> Optional[JobEntry]:
        """Return the entry of a job; None if there is none.

        :raises Refused: if it can't be read, because the job may have run.
        """
        path = self._path(identifier)
        try:
            data = json.loads(path.read_bytes()[: _MOST_BYTES * 2])
            entry = JobEntry(**data)
            if entry.id != identifier or entry.state not in _STATES:
                raise ValueError("it is of another job")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise Refused(
                f"{path} can't be read ({sanitize(str(error), 200)}), so the job may have run here already. Begin a new job for this host."
            ) from None
        return entry

    def add(self, entry: JobEntry) -> None:
        """Write the first entry of a job.

        :raises Refused: if there is one, if the job is older than those whose entries were removed, or if the disk does not take it.
        """
        forgotten = self._forgotten()
        if entry.expires <= forgotten:
            raise Refused(self._too_early(forgotten, time.time()))
        path = self._path(entry.id)
        new = path.with_suffix(".first")
        try:
            self._write(new, entry)
            # Unlike a rename, it fails if another process has just begun the same job.
            os.link(new, path)
            self._sync_folder()
        except FileExistsError:
            raise Refused(f"The job {entry.id} has run on this node already. Begin a new job.") from None
        except OSError as error:
            raise self._full(error) from None
        finally:
            with contextlib.suppress(OSError):
                new.unlink()

    def save(self, entry: JobEntry) -> None:
        """Replace the entry of a job, so that it outlives a loss of power.

        :raises Refused: if the disk does not take it.
        """
        path = self._path(entry.id)
        new = path.with_suffix(".new")
        try:
            self._write(new, entry)
            new.replace(path)
            self._sync_folder()
        except OSError as error:
            raise self._full(error) from None

    def remove(self, identifier: str) -> None:
        """Remove the entry of a job that did not run."""
        with contextlib.suppress(OSError):
            self._path(identifier).unlink()
            self._sync_folder()

    def entries(self) -> Iterator[JobEntry]:
        """Yield all entries that can be read."""
        with contextlib.suppress(OSError):
            for path in sorted(self.folder.glob("*.json")):
                if is_job_id(path.stem):
                    with contextlib.suppress(Refused):
                        entry = self.read(path.stem)
                        if entry is not None:
                            yield entry

    def newest_time(self) -> tuple[float, str]:
        """Return the newest time at which this node has begun or ended a job (unix seconds), and the file that has it."""
        times = [(float(max(one.at, one.ended)), str(self._path(one.id))) for one in self.entries()]
        return max(times, default=(0.0, ""))

    def to_report(self) -> list[JobEntry]:
        """Return the entries that Consul has to learn of: those that ended, and those whose process is gone."""
        return [one for one in self.entries() if one.state != STARTING and not one.is_reported and not one.is_running]

    def recover(self, now: int) -> None:
        """Note what has become of jobs whose process is gone. What is left of their commands is killed.

        A job that had not started may still start. One that had is lost: its result is unknown.

        :param now: unix seconds.
        """
        for entry in self.entries():
            if entry.state != STARTED or entry.is_running:
                continue
            reason = "the node restarted" if entry.boot != state.boot_id() else "the process that ran it ended"
            if entry.kill_command():
                reason += ", and its command was killed"
            error = f"lost: {reason}, so its result is unknown"
            with contextlib.suppress(Refused):
                self.save(replace(entry, state=LOST, ended=now, error=error))

    def prune(self, now: int) -> None:
        """Remove entries of jobs that have expired, and have not started or have their end in Consul. Older jobs are refused from then on.

        :param now: unix seconds.
        """
        old = [one for one in self.entries() if (one.state == STARTING or one.is_reported) and one.expires < now]
        if not old:
            return
        with contextlib.suppress(OSError):
            new = self.folder / f"{_FORGOTTEN}.new"
            with new.open("w", encoding="ascii") as file:
                file.write(str(max(self._forgotten(), *(one.expires for one in old))))
                file.flush()
                os.fsync(file.fileno())
            new.replace(self.folder / _FORGOTTEN)
            self._sync_folder()
            for one in old:
                self._path(one.id).unlink()

    def _forgotten(self) -> int:
        try:
            return int((self.folder / _FORGOTTEN).read_text(encoding="ascii"))
        except FileNotFoundError:
            return 0
        except (OSError, ValueError):
            raise Refused(
                f"{self.folder / _FORGOTTEN} can't be read, so it is unknown which jobs this node has run. Write the present time in unix "
                "seconds there."
            ) from None

    def _too_early(self, forgotten: int, now: float) -> str:
        """Return why a job is refused, and how long the next one has to be valid. That may be more than usual if a clock was wrong."""
        shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(min(forgotten, _LATEST_SHOWN)))
        text = (
            f"The job does not expire after the jobs that this node has run and forgotten ({shown}), so it may have run here already. Begin a new job that "
            "expires after that: "
        )
        # Clocks differ, and so do the times at which the node and the operator read this.
        hours = max(0, math.ceil((forgotten - now) / 3600)) + 1
        if hours * 3600 <= MOST_SECONDS:
            return f"{text}-e expires={hours}h."
        return (
            f"{text}that is more than a job may take, so a clock was wrong. Once no job can begin here that it has run, write the present time in unix "
            f"seconds to {self.folder / _FORGOTTEN}."
        )

    def _path(self, identifier: str) -> Path:
        if not is_job_id(identifier):
            raise Refused(f"{sanitize(repr(identifier), 100)} can't be the ID of a job. Begin a new job.")
        return self.folder / f"{identifier}.json"

    def _write(self, path: Path, entry: JobEntry) -> None:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(json.dumps(asdict(entry)).encode())
            file.flush()
            os.fsync(file.fileno())

    def _sync_folder(self) -> None:
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _full(self, error: OSError) -> Refused:
        return Refused(
            f"{self.folder} can't be written: {error.strerror}. The node runs no job that it could not remember. Make room, or correct the disk."
        )


def new_entry(job: NodeJob, run: str, now: int, attempt: int = 1, *, is_repeatable: bool = True) -> JobEntry:
    """Return the entry of a job that this process begins.

    :param now: unix seconds.
    """
    own = own_process()
    return JobEntry(
        job.id, job.command, job.expires, STARTING, run, attempt, at=now, is_repeatable=is_repeatable, **own
    )
