# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Puppet's lock against its own runs: ``puppet agent --disable``, by an operator or by this agent."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Callable, Optional

from .errors import sanitize
from .lock_file import is_locked

# The directories of Debian's packages, of those of Puppet and OpenVox, and where OpenVox documents it.
FOLDERS = (
    "/var/lib/puppet/state",
    "/var/cache/puppet/state",
    "/opt/puppetlabs/puppet/cache/state",
    "/var/opt/puppetlabs/puppet/cache/state",
)
_NAME = "agent_disabled.lock"
# The lock of a run of Puppet that the module puppet_run makes, such as one over SSH.
RUN_LOCK = "/run/convoy/puppet.lock"
# How the reason of this agent's own lock begins. It is no hold of an operator. An operator may give such a reason too, so the whole text counts:
# Puppet writes its JSON without spaces.
OWN = "convoy.upgrade: "
# While this lock is there, `puppet agent --disable` does nothing, without an error.
_NO_HOLD = "This is no hold. To hold the host, use ansible-playbook convoy.upgrade.hold"
_MOST_BYTES = 8192
_MOUNTS = "/proc/self/mountinfo"


def disabled_by_operator(folders: Sequence[str] = FOLDERS) -> Optional[str]:
    """Return the reason that an operator gave to ``puppet agent --disable``; None if no operator has disabled Puppet."""
    for folder in folders:
        path = Path(folder) / _NAME
        reason = _reason(path)
        if reason is not None and not _is_own(path):
            return reason
    return None


def keep_out(reason: str, folders: Sequence[str] = FOLDERS) -> bool:
    """Disable Puppet's own runs, unless it is disabled already; return whether this call did it.

    Which folder Puppet uses depends on its packages and settings, so each that may be it gets a lock. Puppet creates the folder only in its
    first run, which has to be kept out too. A lock that an agent run has put aside for its own Puppet is left to it.

    :raises OSError: if a folder can't get its lock. The others have theirs all the same.
    """
    if disabled_by_operator(folders) is not None or _is_put_aside(folders):
        return False

    def lock(folder: Path) -> bool:
        path = folder / _NAME
        if not folder.parent.is_dir() or os.path.lexists(path):
            return False
        folder.mkdir(mode=0o755, exist_ok=True)
        return _create(path, _lock_text(f"{OWN}{sanitize(reason).rstrip('.')}. {_NO_HOLD}"))

    return _in_each(folders, lock)


def is_enabled(folders: Sequence[str] = FOLDERS) -> bool:
    """Return whether a folder that may be Puppet's has no lock, such as after ``puppet agent --enable``."""
    return any(Path(one).parent.is_dir() and not os.path.lexists(Path(one, _NAME)) for one in folders)


def let_in(folders: Sequence[str] = FOLDERS) -> bool:
    """Enable Puppet's own runs again, if this agent had disabled them; return whether it had.

    :raises OSError: if a lock can't be removed. The others are removed all the same.
    """

    def unlock(folder: Path) -> bool:
        path = folder / _NAME
        if not _is_own(path):
            return False
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        return True

    return _in_each(folders, unlock)


def is_outside_service(folders: Sequence[str] = FOLDERS, mounts: str = _MOUNTS) -> bool:
    """Return whether a folder of Puppet is read-only only because it was created after systemd started this service.

    With ``ProtectSystem=strict``, all is read-only in the service except the folders of ``ReadWritePaths``. Each of those that exist when it
    starts becomes a mount of its own, so a folder that has one already is read-only for another reason, which no start of the service changes.

    :param mounts: a file like ``/proc/self/mountinfo``.
    """
    try:
        if not os.statvfs("/").f_flag & os.ST_RDONLY:
            return False
        points = {line.split()[4] for line in Path(mounts).read_text(encoding="utf-8", errors="replace").splitlines()}
    except (OSError, IndexError):
        return False
    return any(one.is_dir() and os.path.realpath(one) not in points for one in (Path(each).parent for each in folders))


def _in_each(folders: Sequence[str], change: Callable[[Path], bool]) -> bool:
    """Change all folders, also if one of them fails; return whether any was changed.

    :raises OSError: the first error, at the end.
    """
    errors, found = [], False
    for folder in folders:
        try:
            found = change(Path(folder)) or found
        except OSError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return found


def _create(path: Path, text: str) -> bool:
    """Create a lock that is complete from its first moment, also after a power cut; return False if there is one already.

    An incomplete lock would count as an operator's, and hold the node forever.
    """
    new = path.with_name(f".{_NAME}.{os.getpid()}")
    _remove_left_over(path.parent)
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        # Unlike a rename, this never replaces a lock.
        with contextlib.suppress(FileExistsError):
            os.link(new, path)
            return True
        return False
    finally:
        with contextlib.suppress(FileNotFoundError):
            new.unlink()


def _remove_left_over(folder: Path) -> None:
    """Remove the temporary files of processes that were killed. The module puppet_run gives its own the same names."""
    for file in filter(_is_left_over, folder.glob(f".{_NAME}.*")):
        with contextlib.suppress(FileNotFoundError):
            file.unlink()


def _is_left_over(file: Path) -> bool:
    number = file.suffix[1:]
    return number.isdecimal() and (int(number) == os.getpid() or not Path("/proc", number).exists())


def _is_put_aside(folders: Sequence[str]) -> bool:
    """Return whether the module puppet_run has put this agent's lock aside, and will put it back. Its Puppet would refuse to run with another one.

    The file alone proves nothing, because another process may have got the PID of one that was killed.
    """
    files = (file for folder in folders for file in Path(folder).glob(f".{_NAME}.*"))
    return any(not _is_left_over(file) for file in files) and is_locked(Path(RUN_LOCK))


def _lock_text(reason: str) -> str:
    """Return the text of this agent's own lock."""
    return json.dumps({"disabled_message": reason})


def _is_own(path: Path) -> bool:
    """Return whether this agent wrote a lock file. One that can't be read is an operator's."""
    try:
        text = path.read_text(encoding="utf-8")
        reason = json.loads(text)["disabled_message"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return False
    return str(reason).startswith(OWN) and text == _lock_text(reason)


def _reason(path: Path) -> Optional[str]:
    """Return the reason in a lock file; None if there is no such file. One that can't be read disables Puppet too."""
    if not os.path.lexists(path):
        return None
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError as error:
        return f"{path} can't be read: {error.strerror}"
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = text
    reason = found.get("disabled_message") if isinstance(found, dict) else found
    return sanitize(str(reason or "").strip()) or "reason not specified"
