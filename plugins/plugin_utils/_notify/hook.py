# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The hook: an operator's task file. A separate run of ansible-playbook includes it, so that it can neither delay nor end this run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ...module_utils._common.processes import end_process_tree
from ...module_utils._common.sanitize import may_be_template, sanitize, truncate_middle

PLAYBOOK = Path(__file__).resolve().parents[3] / "playbooks/internal/notification.yml"

# Variables of this run that the run of the hook must not inherit: the address of the daemon, and how output is printed.
_NOT_INHERITED = ("CONVOY_UPGRADE_", "ANSIBLE_STDOUT_CALLBACK", "ANSIBLE_FORCE_COLOR", "ANSIBLE_CALLBACK_RESULT_FORMAT")
_MOST_LINES = 5
_SECONDS_TO_END = 5


class NotSent(NamedTuple):
    """Why an event was not sent, and what an operator can do: the end of a sentence, and sentences."""

    why: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Hook:
    """A task file, and the options of this run, so that the hook has the same variables.

    :param arguments: options for ansible-playbook: inventories, extra variables, vault password files.
    :param folder: the working directory of this run.
    :param patience: timeout in seconds.
    """

    file: str
    arguments: tuple[str, ...]
    folder: str
    patience: float

    def call(self, event: Mapping[str, Any]) -> NotSent | None:
        """Call the hook with an event; return None if that succeeds."""
        try:
            with tempfile.TemporaryDirectory(prefix="convoy-hook-") as folder:
                return self._call_in(Path(folder), event)
        except OSError as error:
            return NotSent(str(error), "Check this machine.")

    def _call_in(self, folder: Path, event: Mapping[str, Any]) -> NotSent | None:
        facts, why = folder / "event.yml", folder / "why"
        facts.write_text(f"upgrade_event: {as_data(event)}\n", encoding="utf-8")
        own = {"upgrade_hook": self.file, "upgrade_hook_why": str(why)}
        command = [sys.executable, "-m", "ansible", "playbook", str(PLAYBOOK), *self.arguments]
        command += ["-e", f"@{facts}", "-e", json.dumps(own)]
        environ = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_INHERITED)}
        environ |= {"ANSIBLE_STDOUT_CALLBACK": "default", "ANSIBLE_NOCOLOR": "1"}
        code, output = _run(command, environ, self.folder, self.patience)
        if code is None:
            return NotSent(
                f"it took longer than {self.patience:.0f} s and was stopped",
                "Check what its tasks wait for, or set upgrade_notify_timeout higher.",
            )
        lines = [line for line in output.splitlines() if line.strip()]
        if why.exists():
            text = why.read_text(encoding="utf-8", errors="replace").strip()
        elif code:
            text = " ".join(lines[-_MOST_LINES:])
        else:
            return None
        return NotSent(truncate_middle(sanitize(text)), "Fix the file, or what its tasks use.")


def _run(command: list[str], environ: Mapping[str, str], folder: str, timeout: float) -> tuple[int | None, str]:
    """Run a command; return its exit code, None after the timeout, and its output."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            env=environ,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            end_process_tree(process, _SECONDS_TO_END)
            process.wait()
            return None, ""
        output.seek(0)
        return process.returncode, output.read().decode(errors="replace")


def as_data(value: Any) -> str:
    """Return a value as YAML in which no text is a template, for any release of Ansible."""
    if isinstance(value, str):
        # Only if needed: newer releases read a quoted number with !unsafe as a number.
        return f"{'!unsafe ' if may_be_template(value) else ''}{json.dumps(value, ensure_ascii=False)}"
    if isinstance(value, Mapping):
        inner = ", ".join(f"{json.dumps(name, ensure_ascii=False)}: {as_data(below)}" for name, below in value.items())
        return f"{{{inner}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(as_data, value))}]"
    return json.dumps(value)
