# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Follows a rollout for the view of a run that has other things to do: a process of its own, which ends with the view."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from ...module_utils._common.errors import UpgradeError
from ...module_utils._common.processes import close_files_except
from ...module_utils._consul.settings import Settings, read_settings
from ...module_utils._module import CONNECTION_OPTIONS
from ...module_utils._queries.follow import ProgressUpdate, follow
from .._observe.story import ViewMessages, progress_as_data
from .._observe.view_socket import FED, ViewSender, folder_of, is_unfed
from .daemon import detached

LOG = "log"
# For so long the run waits for the first drawing, so that nothing is told twice (seconds).
_PATIENCE = 3.0


def settings_from(options: Mapping[str, Any]) -> Settings:
    """Return how Consul is reached, from the options of a task as they were given.

    :raises UpgradeError: ``bad_connection``.
    """
    given = {name: options[name] for name in CONNECTION_OPTIONS if name in options}
    checked = ArgumentSpecValidator(CONNECTION_OPTIONS).validate(given)
    if checked.error_messages:
        why = "; ".join(checked.error_messages)
        raise UpgradeError(
            "bad_connection",
            f"How Consul is reached can't be read: {why}. Correct the option or variable that is named.",
        )
    return read_settings(checked.validated_parameters.get, os.environ)


def feed(
    process: int,
    settings: Callable[[], Settings],
    fleet: Mapping[str, str] | None,
    version: str,
    first: Mapping[str, Any] | None = None,
) -> bool:
    """Have the view of a run told how the rollout goes; return whether it is, so that no one else has to show it.

    Whatever goes wrong, the run goes on without it.

    :param process: that of ansible-playbook.
    :param version: where the fleet goes in this run; another Consul, that says something else, is not believed.
    :param first: as for :class:`ViewMessages`.
    """
    folder = folder_of(process)
    if folder is None or not is_unfed(process):
        return folder is not None
    try:
        # That of who told it to its end, so that others are not silent if this one fails.
        (folder / FED).unlink(missing_ok=True)
        found = settings()
        sender = ViewSender(folder)
        reading, writing = os.pipe()
        story = ViewMessages(first)
        detached(lambda: _live(found, fleet, version, story, sender, writing, folder))
        os.close(writing)
        sender.close()
        with os.fdopen(reading, "rb") as told:
            ready, _writing, _failed = select.select([told], [], [], _PATIENCE)
            return bool(ready) and told.read(1) == b"!"
    except Exception:
        # Then it is told in lines, as without a view.
        return False


def _live(
    settings: Settings,
    fleet: Mapping[str, str] | None,
    version: str,
    story: ViewMessages,
    sender: ViewSender,
    telling: int,
    folder: Path,
) -> None:
    log = os.open(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    close_files_except(sender.line.fileno(), telling, log)
    os.dup2(log, 2)
    threading.Thread(target=_end_with, args=(sender.line,), daemon=True).start()
    last = None
    try:
        for found in follow(settings, fleet):
            if isinstance(found, ProgressUpdate):
                if last is None and found.progress.version != version:
                    return
                is_first, last = last is None, found
            elif last is None:
                return
            else:
                is_first = False
            if found is not None:
                sender.tell(story.message(found))
            if is_first:
                with contextlib.suppress(OSError):
                    # Who asked for it may have gone on by now.
                    os.write(telling, b"!")
        if last is not None:
            sender.tell({"end": True, "progress": progress_as_data(last.progress)})
    except UpgradeError as error:
        sender.tell({"end": True, "why": f"The live view ends, and the rollout goes on: {error.message}"})
    except Exception:
        # The log is all that is left to say it in.
        traceback.print_exc()


def _end_with(line: socket.socket) -> None:
    """End this process when the view is gone."""
    poll = select.poll()
    poll.register(line, select.POLLRDHUP)
    poll.poll()
    os._exit(0)
