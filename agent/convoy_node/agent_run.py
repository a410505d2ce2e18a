# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An agent run: Ansible with the playbook convoy.upgrade.node, on this node alone."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from .machine.errors import sanitize
from .machine.lock_file import open_lock_folder
from .node.settings import NodeSettings
from .node.state import FOLDER

PLAYBOOK = "convoy.upgrade.node"
UNIT = "convoy-node-run.service"
JOB_UNIT = "convoy-node-job.service"
_FOLDERS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# A file in the folder of a release. Only root can open it, or other users could keep all releases, or have one removed that is in use.
RUN_LOCK = ".run.lock"
LOCK_FILE = "/run/convoy/node.lock"
# A file beside the lock. This agent writes begun, and ended if nothing else did. The role in tasks/run.yml writes locked if another run has the
# lock; otherwise working with the ID of the run, and ended after its steps.
_LAST_RUN, _BEGUN, _LOCKED, _WORKING, _ENDED = "last_run", "begun", "locked", "working", "ended"
# Ansible's exit code after an interrupt.
_INTERRUPTED = 99

# How long the import of Ansible may take (seconds).
_IMPORT_SECONDS = 60.0


@dataclass(frozen=True)
class Release:
    """What an agent run is made with.

    :param folder: the folder of the release.
    :param name: its name, which the node reports.
    :param python: the Python that has Ansible.
    :param collections: the folder with the collection; None if Ansible finds it by itself.
    """

    folder: Path
    name: str
    python: str
    collections: Optional[str] = None

    @classmethod
    def at(cls, folder: Path) -> Release:
        """Return the release in a folder, as its ``release.json`` describes it."""
        try:
            facts: dict[str, Any] = json.loads((folder / "release.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            # A checkout.
            return cls(folder, "unknown", sys.executable)
        collections = folder / "collections"
        # A relative path, such as that of a virtual environment, is one inside the release.
        python = str(folder / str(facts["python"]))
        return cls(folder, str(facts["name"]), python, str(collections) if collections.is_dir() else None)

    @property
    def home(self) -> Optional[Path]:
        """The folder with all releases of this node; None if this one is not installed there."""
        folder = self.folder.parent
        return folder.parent if folder.name == "releases" else None


def own_release() -> Release:
    """Return the release that this program belongs to."""
    return Release.at(Path(__file__).resolve().parents[2])


def command(release: Release, settings: NodeSettings, path: str, more: Sequence[str] = ()) -> list[str]:
    """Return the command of an agent run.

    :param path: the settings file.
    :param more: further arguments for Ansible, which win over the settings.
    """
    facts = {
        "ansible_connection": "local",
        "ansible_python_interpreter": release.python,
        "puppet_gate_host": settings.host,
        "puppet_gate_role": settings.role,
        "puppet_gate_release": release.name,
    }
    inventory = _variables_of_services(settings, path)
    if inventory:
        # The file may still have a former name of the host.
        facts["upgrade_nodes"] = settings.host
    if release.home is not None:
        facts["puppet_gate_home"] = str(release.home)
    if settings.token_file:
        # The path, so that no process shows the token among its arguments.
        facts["upgrade_consul_token"] = "{{ lookup('ansible.builtin.file', " + json.dumps(settings.token_file) + ") }}"
    words = [
        release.python,
        "-m",
        "ansible",
        "playbook",
        *inventory,
        "-i",
        f"{settings.host},",
        "-e",
        f"@{path}",
        "-e",
        json.dumps(facts),
    ]
    return [*words, PLAYBOOK, *more]


def _variables_of_services(settings: NodeSettings, path: str) -> list[str]:
    """Return the option for the inventory with the variables of services, which comes with the settings; none if there are no services."""
    file = Path(path).with_name("services.yml")
    return ["-i", str(file)] if settings.services and file.is_file() else []


def lock_file(settings: NodeSettings) -> Path:
    """Return the lock file of the node, which agent runs use."""
    return Path(settings.data.get("puppet_gate_lock_file") or LOCK_FILE)


def last_run(settings: NodeSettings) -> tuple[int, str]:
    """Return when the file of the last agent run was written, and what it says; an empty text if there is none."""
    path = lock_file(settings).with_name(_LAST_RUN)
    try:
        return path.stat().st_mtime_ns, path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return 0, ""


def note_end(settings: NodeSettings) -> None:
    """Note the end of an agent run without steps, such as one with a closed gate."""
    if last_run(settings)[1] == _BEGUN:
        _note(settings, _ENDED)


def _note(settings: NodeSettings, text: str) -> None:
    with contextlib.suppress(OSError):
        lock_file(settings).with_name(_LAST_RUN).write_text(f"{text}\n", encoding="ascii")


def was_locked_out(settings: NodeSettings, before: tuple[int, str]) -> bool:
    """Return whether an agent run that has ended found the lock of another one, and did nothing.

    :param before: what :func:`last_run` returned before it.
    """
    after = last_run(settings)
    return after != before and after[1] == _LOCKED


def new_id() -> str:
    """Return an ID for an agent run that no other run of this node has."""
    return f"{os.getpid()}-{time.time_ns()}"


def was_cut_short(settings: NodeSettings, run: str, code: int) -> bool:
    """Return whether Ansible ended an agent run by itself, but not with the role's last tasks: so the run may have reported nothing.

    Ansible does that if it can't read a file that is included in an upgrade, and after a meta task such as ``end_host`` in one. A run that was
    killed is none of these: the next one goes on. So is one that found the lock, as another run then works or has noted that it has.

    :param run: the ID of the run.
    :param code: its exit code.
    """
    return code >= 0 and code != _INTERRUPTED and last_run(settings)[1] == f"{_WORKING} {run}"


def has_worked(settings: NodeSettings, before: tuple[int, str], code: int) -> bool:
    """Return whether an agent run that has ended could work: it was started, and no other run had the lock.

    :param before: what :func:`last_run` returned before it.
    :param code: the exit code of what started it.
    """
    if was_locked_out(settings, before):
        return False
    # systemctl may have waited for a run that was under way already. That run wrote begun earlier.
    return code == 0 or last_run(settings) != before or before[1] == _BEGUN


def environment(release: Release, settings: NodeSettings, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of an agent run."""
    # Beside the lock file, by default in /run and so in memory. Otherwise Ansible could not report a full disk.
    memory = str(lock_file(settings).with_name("tmp"))
    kept = {name: value for name, value in environ.items() if not name.startswith(("ANSIBLE_", "CONSUL_", "PYTHON"))}
    # The agent reads its gate without a proxy, and a proxy would see the token.
    hosts = settings.connection.host, settings.consul_agent.host
    direct = {
        # An asterisk stands for all hosts only if nothing else is named.
        name: "*" if kept.get(name) == "*" else ",".join(filter(None, (kept.get(name), *hosts)))
        for name in ("no_proxy", "NO_PROXY")
    }
    return {
        **kept,
        **direct,
        # systemd sets none.
        "HOME": kept.get("HOME") or str(Path.home()),
        # An empty file: the host may have a configuration for other playbooks, with plugins that are not in the release.
        "ANSIBLE_CONFIG": str(Path(memory, "ansible.cfg")),
        # Those of cron lack the folders of package and service commands.
        "PATH": _FOLDERS,
        "LC_ALL": "C.UTF-8",
        "ANSIBLE_HOME": FOLDER,
        "ANSIBLE_LOCAL_TEMP": memory,
        "ANSIBLE_REMOTE_TEMP": memory,
        "ANSIBLE_LOCALHOST_WARNING": "false",
        "ANSIBLE_PIPELINING": "true",
        "ANSIBLE_DISPLAY_OK_HOSTS": "false",
        "ANSIBLE_DISPLAY_SKIPPED_HOSTS": "false",
        "ANSIBLE_NOCOLOR": "true",
        **({"ANSIBLE_COLLECTIONS_PATH": release.collections} if release.collections else {}),
    }


def runtime_problem(release: Release, settings: NodeSettings) -> Optional[str]:
    """Return why no agent run can be made with a release, as a sentence; None if one can. A Python of another version does not have its Ansible."""
    try:
        done = subprocess.run(
            [release.python, "-c", "import ansible"],
            env=environment(release, settings, os.environ),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_IMPORT_SECONDS,
            check=False,
        )
    except OSError as error:
        reason = error.strerror or str(error)
    except subprocess.TimeoutExpired:
        reason = f"it takes longer than {_IMPORT_SECONDS:g} s"
    else:
        if not done.returncode:
            return None
        reason = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
    return (
        f"The release {release.name} can't import Ansible with {release.python}: {sanitize(reason).rstrip('.')}. The host may have "
        f"another Python since then. Run ansible-playbook convoy.upgrade.enroll --limit {settings.host}, or install the package for this Python."
    )


def start(release: Release, settings: NodeSettings, path: str, more: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    """Start an agent run as a child of this process, and return it.

    The child inherits a lock on its release, so that no installation removes the release while the run lasts.

    :raises LockError: if another user could change the folder of its lock, or that of its temporary files beside it.
    """
    environ = environment(release, settings, os.environ)
    memory = Path(environ["ANSIBLE_LOCAL_TEMP"]).absolute()
    for folder in (memory.parent, memory):
        os.close(open_lock_folder(folder))
    with contextlib.suppress(OSError):
        Path(environ["ANSIBLE_CONFIG"]).touch(0o600)
    _note(settings, _BEGUN)
    with contextlib.ExitStack() as opened:
        kept = []
        # Agents of before RUN_LOCK look at the other file, which any user could lock too. A checkout has neither.
        for name, create in ((RUN_LOCK, os.O_CREAT), ("release.json", 0)) if release.home is not None else ():
            with contextlib.suppress(OSError):
                file = os.open(release.folder / name, os.O_RDONLY | create | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
                opened.callback(os.close, file)
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                kept.append(file)
        words = command(release, settings, path, more)
        return subprocess.Popen(words, env=environ, stdin=subprocess.DEVNULL, cwd="/", pass_fds=kept)


def start_unit(unit: str = UNIT) -> subprocess.Popen[bytes]:
    """Start an agent run or a job as a unit of systemd, and return a process that ends with it.

    The unit goes on if the agent ends or is replaced meanwhile. If it runs already, this waits for it.
    """
    return subprocess.Popen(["systemctl", "start", unit], stdin=subprocess.DEVNULL, cwd="/")


def start_program(path: str, what: str = "run") -> subprocess.Popen[bytes]:
    """Start ``convoy-node run`` or ``convoy-node job``, where systemd does not do that.

    :param path: the settings file.
    """
    program = str(Path(__file__).resolve().parents[1])
    return subprocess.Popen(
        [sys.executable, "-I", program, "--settings", path, what], stdin=subprocess.DEVNULL, cwd="/"
    )


def has_systemd() -> bool:
    """Return whether systemd runs this node, as sd_booted(3) finds out."""
    return Path("/run/systemd/system").is_dir()


def has_unit(unit: str = UNIT) -> bool:
    """Return whether this node starts agent runs, or jobs, as units of systemd."""
    folders = ("/etc/systemd/system", "/lib/systemd/system", "/usr/lib/systemd/system")
    return has_systemd() and any(Path(one, unit).exists() for one in folders)


def as_variables(**texts: str) -> str:
    """Return extra variables for Ansible. Their texts lose their braces, and what names other delimiters, so that none of them is a template."""
    return json.dumps({name: _without_templates(text) for name, text in texts.items()})


def _without_templates(text: str) -> str:
    return text.replace("{", "(").replace("}", ")").replace("#jinja2:", "# jinja2:")
