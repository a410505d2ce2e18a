# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Signatures of jobs: made with ``ssh-keygen -Y sign``, and verified against the keys that this node itself allows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..machine.errors import sanitize
from .job import NodeJob
from .refusals import Refused
from .trusted_files import read_trusted, refuse_untrusted_folder, refuse_untrusted_program

FILE = "/etc/convoy/allowed_signers"
# A signature for another purpose, such as one of a commit or a file, is none for a job.
NAMESPACE = "job@convoy.upgrade"
_SECONDS = 20
_MOST_BYTES = 1_000_000
_MOST_SIGNATURE = 20_000
# The key itself in a line of allowed_signers.
_KEY = re.compile(r"\bAAAA[A-Za-z0-9+/]+=*")
# On Debian, the group staff may write to /usr/local/bin.
_FOLDERS = "/usr/bin:/bin:/usr/local/bin"


def verify_signature(job: NodeJob, prefix: str, allowed_signers: str = FILE) -> str:
    """Return who signed a job.

    :param prefix: the key prefix of the fleet, which is part of the signed text.
    :param allowed_signers: the file with the keys that may sign, as ssh-keygen(1) describes it.
    :raises Refused: if no allowed key has signed exactly this job.
    """
    if not job.signature:
        raise Refused(
            "The job is not signed, and this node runs only signed jobs. Begin a job with -e sign_with=FILE, the file of a key in "
            f"{allowed_signers}."
        )
    refuse_untrusted_folder(Path(allowed_signers).parent)
    keys = read_trusted(Path(allowed_signers), _MOST_BYTES)
    try:
        text = job.signed_text(prefix)
    except (ValueError, RecursionError):
        raise Refused(
            "The job has arguments that can't be signed. Begin a new job with values that JSON has."
        ) from None
    with _copies(job.signature.encode("ascii", "replace")[:_MOST_SIGNATURE], keys) as (signature, allowed):
        found = _keygen(["find-principals", "-s", str(signature), "-f", str(allowed)], text)
        names = found.stdout.decode("utf-8", "replace").splitlines() if found.returncode == 0 else []
        if not names:
            raise Refused(
                f"The job is signed with a key that is not in {allowed_signers} of this node: {_last_line(found)}. Sign it with an allowed "
                "key, or add the key on the node."
            )
        for name in dict.fromkeys((*names, *_other_names(keys, names))):
            words = ["verify", "-f", str(allowed), "-I", name, "-n", NAMESPACE, "-s", str(signature)]
            verified = _keygen(words, text)
            if verified.returncode == 0:
                return sanitize(name, 200)
    raise Refused(
        f"The signature by {sanitize(names[0], 200)} does not fit the job: {_last_line(verified)}. The command, its arguments, its hosts, "
        "its expiry or the key prefix differ from what was signed. Begin a new job, and find out who changed this one."
    )


def _other_names(keys: bytes, names: Sequence[str]) -> list[str]:
    """Return the names of the other lines that have the same keys as the lines with these names.

    find-principals stops at the first line, which may be for another namespace.
    """
    lines = [
        (line.split()[0].strip('"'), found.group())
        for line in keys.decode("utf-8", "replace").splitlines()
        if (found := _KEY.search(line)) and not line.lstrip().startswith("#")
    ]
    same = {key for name, key in lines if name in names}
    return [name for name, key in lines if key in same]


def check_signers(allowed_signers: str = FILE) -> None:
    """Check that signatures of jobs can be verified on this node.

    :raises Refused: if another user than root could have changed the file, it has no key, or ssh-keygen is missing.
    """
    refuse_untrusted_folder(Path(allowed_signers).parent)
    lines = read_trusted(Path(allowed_signers), _MOST_BYTES).decode("utf-8", "replace").splitlines()
    if not any(line.strip() and not line.lstrip().startswith("#") for line in lines):
        raise Refused(
            f"{allowed_signers} has no key, so this node runs no signed job. Add a line to it: a name, and a public key."
        )
    _program()


@contextmanager
def _copies(signature: bytes, keys: bytes) -> Iterator[tuple[Path, Path]]:
    """Yield the paths of temporary files with a signature and with the allowed keys, which are those that were checked.

    :raises Refused: if they can't be written.
    """
    folder = None
    try:
        try:
            # mkdtemp lets only this user into the folder.
            folder = tempfile.mkdtemp(prefix="convoy-job-")
            files = Path(folder, "signature"), Path(folder, "allowed_signers")
            for file, content in zip(files, (signature, keys)):
                file.write_bytes(content)
        except OSError as error:
            raise Refused(
                f"The signature can't be verified: no temporary files can be written ({sanitize(error.strerror or str(error), 200)}). "
                "Make room in /tmp of this node, or create it."
            ) from None
        yield files
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _program() -> str:
    """Return the path of ssh-keygen. What it says of a signature is believed, so only root may be able to change it.

    :raises Refused: if it is missing, or another user could change or replace it.
    """
    found = shutil.which("ssh-keygen", path=_FOLDERS)
    if found is None:
        raise Refused(_no_keygen(f"it is not in {_FOLDERS}"))
    program = Path(os.path.realpath(found))
    refuse_untrusted_folder(Path(found).parent)
    refuse_untrusted_folder(program.parent)
    refuse_untrusted_program(program)
    return str(program)


def _keygen(words: Sequence[str], text: bytes) -> subprocess.CompletedProcess[bytes]:
    program = _program()
    environ = {"PATH": _FOLDERS, "LC_ALL": "C", "HOME": os.environ.get("HOME", "/")}
    try:
        return subprocess.run(
            [program, "-Y", *words],
            input=text,
            capture_output=True,
            env=environ,
            timeout=_SECONDS,
            check=False,
            cwd="/",
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = getattr(error, "strerror", None) or f"no answer in {_SECONDS} s"
        raise Refused(_no_keygen(reason)) from None


def _no_keygen(reason: str) -> str:
    return (
        f"No signature can be verified: ssh-keygen does not run ({reason}). Install OpenSSH 8.2 or later on this node."
    )


def _last_line(result: subprocess.CompletedProcess[bytes]) -> str:
    lines = (result.stderr or result.stdout).decode("utf-8", "replace").strip().splitlines()
    return sanitize(lines[-1], 200).rstrip(".") if lines else f"ssh-keygen ended with {result.returncode}"
