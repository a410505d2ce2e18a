# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings, a token or a lock that can't be used: what the agent keeps for that time, and how it reports them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Optional, Union

from . import agent_run
from .gate_reading import GateReading
from .machine.errors import BadSettings, BadToken, ConsulError, LockError, sanitize
from .machine.lock_file import is_locked, open_lock_folder
from .node.gate import answer
from .node.settings import NodeSettings, forget_last_good, keep_last_good, last_good, read_settings, usable_settings

# The last token that could be read, and what was reported last.
_TOKEN, _REPORTED = "last_token", "reported"
# What the first settings of a node give, if they have a mistake.
_USABLE = "usable.json"
# What was reported is reported again after this time (seconds), because the node's Consul agent may have lost it.
_REPORT_AGAIN = 1800.0
# The service starts again after this time (seconds), to read the settings again, and to report what could not be reported, or a gate that opened.
_START_AGAIN = 60
_TRIES = 3
_START = (
    "if systemctl --quiet is-active convoy-node.path && systemctl --quiet is-failed convoy-node.service; then "
    "exec systemctl --no-block start convoy-node.service; fi"
)


def keep_good(settings: NodeSettings, path: str) -> None:
    """Keep settings and a token that could be used. The token, whose file something else may have in memory, is kept only there.

    :param path: the settings file.
    """
    keep_last_good(settings, path)
    folder = _folder(settings)
    with contextlib.suppress(OSError, LockError):
        _write(folder, _REPORTED, None)
        _write(folder, _USABLE, None)
        _write(folder, _TOKEN, settings.connection.token if settings.token_file else None)


def forget_good() -> None:
    """Remove what :func:`keep_good` has stored.

    :raises OSError: if it can't be removed.
    """
    # Settings that no longer parse don't say where their token is. It is in the default folder then, unless they set another lock file.
    default = Path(os.environ.get("RUNTIME_DIRECTORY") or Path(agent_run.LOCK_FILE).parent)
    for folder in {default, *map(_folder, forget_last_good())}:
        for name in (_TOKEN, _USABLE):
            with contextlib.suppress(FileNotFoundError):
                (folder / name).unlink()


def report_bad_settings(error: Union[BadSettings, LockError], path: str) -> bool:
    """Let an agent run report that the settings, the token or the lock can't be used, with the last that could; return whether Consul has that report.

    On a node that never had others, the run has those of its settings that can be used.

    What was reported is not reported again, unless the gate or the version has changed meanwhile.

    :param path: the settings file.
    :raises OSError: if a file beside the lock can't be written.
    :raises LockError: if another user could change its folder.
    """
    source = path if isinstance(error, (BadToken, LockError)) else last_good(path)
    try:
        settings = read_settings(source, needs_token=False)
    except BadSettings:
        # There never were any.
        try:
            settings = usable_settings(path)
        except BadSettings:
            return False
        folder = _folder(settings)
        _write(folder, _USABLE, json.dumps(dict(settings.data)))
        source = str(folder / _USABLE)
    settings = _with_last_token(settings)
    if is_locked(agent_run.lock_file(settings)):
        # An upgrade may be under way. Its record must go on to say that it has started.
        return False
    settings = _with_usable_lock(settings, error)
    folder = _folder(settings)
    reading = GateReading(settings, say=lambda _text: None, is_single=True)
    try:
        found = answer(reading.keys, reading.read_keys(), settings.default)
        report = json.dumps([str(error), found.is_open, found.version])
        if _is_reported(folder, report):
            return True
        if not _has_reported(error, settings, source):
            return False
        # Consul may have died meanwhile.
        reading.read_keys()
    except ConsulError:
        return False
    with contextlib.suppress(OSError, LockError):
        _write(folder, _REPORTED, report)
    return True


def start_again() -> None:
    """Let systemd start the failed service again in a moment, as long as it starts it after changes of the settings too."""
    words = ["systemd-run", "--quiet", "--collect", "--unit=convoy-node-again", f"--on-active={_START_AGAIN}"]
    for _try in range(_TRIES):
        try:
            done = subprocess.run(
                [*words, "--timer-property=AccuracySec=5", "sh", "-c", _START],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,
            )
        except OSError:
            return
        if done.returncode == 0:
            return
        # The unit that has started this process has not ended, or another one waits already.
        time.sleep(1.0)


def _has_reported(error: Union[BadSettings, LockError], settings: NodeSettings, source: str) -> bool:
    # The folder of the lock is also that of temporary files. This run ends before it takes the lock.
    lock = str(agent_run.lock_file(settings))
    facts = agent_run.as_variables(puppet_gate_unusable=sanitize(str(error), 2000), puppet_gate_lock_file=lock)
    more = ["-e", facts]
    has_ended = agent_run.start(agent_run.own_release(), settings, source, more).wait() >= 0
    agent_run.note_end(settings)
    return has_ended


def _with_usable_lock(settings: NodeSettings, error: Union[BadSettings, LockError]) -> NodeSettings:
    """Return settings with a lock whose folder can be written: in the service, others are read-only. If the lock can't be used, that is the default."""
    folder = os.environ.get("RUNTIME_DIRECTORY")
    if not folder and not isinstance(error, LockError):
        return settings
    lock = f"{folder}/node.lock" if folder else agent_run.LOCK_FILE
    return replace(settings, data={**settings.data, "puppet_gate_lock_file": lock})


def _with_last_token(settings: NodeSettings) -> NodeSettings:
    """Return settings whose token can't be read with the last that could, if there is one."""
    if settings.connection.token is not None or not settings.data.get("puppet_gate_token_file"):
        return settings
    file = _folder(settings) / _TOKEN
    try:
        token = file.read_text(encoding="ascii")
    except (OSError, ValueError):
        return settings
    return replace(
        settings,
        connection=replace(settings.connection, token=token),
        consul_agent=replace(settings.consul_agent, token=token),
        token_file=str(file),
    )


def _is_reported(folder: Path, report: str) -> bool:
    file = folder / _REPORTED
    try:
        return file.read_text(encoding="utf-8") == report and abs(time.time() - file.stat().st_mtime) < _REPORT_AGAIN
    except (OSError, ValueError):
        return False


def _folder(settings: NodeSettings) -> Path:
    return Path(os.environ.get("RUNTIME_DIRECTORY") or agent_run.lock_file(settings).absolute().parent)


def _write(folder: Path, name: str, text: Optional[str]) -> None:
    """Write a file that only root can read, or remove it.

    :raises OSError: if it can't be written.
    :raises LockError: if another user could change the folder.
    """
    if text is None:
        with contextlib.suppress(FileNotFoundError):
            (folder / name).unlink()
        return
    opened, new = open_lock_folder(folder), f"{name}.new"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(new, flags, 0o600, dir_fd=opened), "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(new, name, src_dir_fd=opened, dst_dir_fd=opened)
    finally:
        os.close(opened)
