# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The hook: a task file that a run of Ansible of its own includes, so that it can neither hold up nor end the run it tells of."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...module_utils._common.processes import end_process_tree
from ...module_utils._common.sanitize import sanitize, truncate_middle

PLAYBOOK = Path(__file__).resolve().parents[3] / "playbooks/internal/notification.yml"

# What tells Ansible of a driver, a view and a notifier is of the run that is told of, and how that prints is not for a hook.
_OURS = ("CONVOY_UPGRADE_", "ANSIBLE_STDOUT_CALLBACK", "ANSIBLE_FORCE_COLOR", "ANSIBLE_CALLBACK_RESULT_FORMAT")
_MOST_LINES = 5
_SECONDS_TO_END = 5


@dataclass(frozen=True, slots=True)
class Hook:
    """A task file, and how the run that is told of was started, for its variables.

    :param arguments: for ansible-playbook: inventories, extra variables, files with passwords of vaults.
    :param folder: from where the run was started.
    :param patience: seconds that it may take.
    """

    file: str
    arguments: tuple[str, ...]
    folder: str
    patience: float

    def call(self, event: Mapping[str, Any]) -> str | None:
        """Call it with an event; return why that failed, None where it did not."""
        with tempfile.TemporaryDirectory(prefix="convoy-hook-") as below:
            facts, why = Path(below) / "event.yml", Path(below) / "why"
            facts.write_text(f"upgrade_event: {as_data(event)}\n", encoding="utf-8")
            own = {"upgrade_hook": self.file, "upgrade_hook_why": str(why)}
            command = [sys.executable, "-m", "ansible", "playbook", str(PLAYBOOK), *self.arguments]
            command += ["-e", f"@{facts}", "-e", json.dumps(own)]
            environ = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
            environ |= {"ANSIBLE_STDOUT_CALLBACK": "default", "ANSIBLE_NOCOLOR": "1"}
            try:
                code, said = _run(command, environ, self.folder, self.patience)
            except OSError as error:
                return str(error)
            if code is None:
                return f"it took longer than {self.patience:.0f} s and was stopped"
            if why.exists():
                return truncate_middle(sanitize(why.read_text(encoding="utf-8", errors="replace").strip()))
            lines = [line for line in said.splitlines() if line.strip()]
            return truncate_middle(sanitize(" ".join(lines[-_MOST_LINES:]))) if code else None


def _run(command: list[str], environ: Mapping[str, str], folder: str, patience: float) -> tuple[int | None, str]:
    """Run it to its end; return its exit code, None where it took too long, and what it said."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command,
            env=environ,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            end_process_tree(process, _SECONDS_TO_END)
            process.wait()
            return None, ""
        said.seek(0)
        return process.returncode, said.read().decode(errors="replace")


def as_data(value: Any) -> str:
    """Return a value as YAML in which no text is a template, whatever stands in it, for any release of Ansible."""
    if isinstance(value, str):
        # Only where it has to be: newer releases read a quoted number as a number there.
        return f"{'!unsafe ' if '{' in value else ''}{json.dumps(value, ensure_ascii=False)}"
    if isinstance(value, Mapping):
        inner = ", ".join(f"{json.dumps(name, ensure_ascii=False)}: {as_data(below)}" for name, below in value.items())
        return f"{{{inner}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(as_data, value))}]"
    return json.dumps(value)
