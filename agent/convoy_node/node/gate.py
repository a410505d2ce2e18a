# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide from the keys in Consul whether an agent run is needed. Only ``read_keys`` does IO.

This check avoids needless Ansible runs. An agent run asks again, in the code of the collection, and starts an upgrade in one transaction.
``plugins/module_utils/_host/gate_question.py`` gives the same answer, which a test compares.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional

from ..machine.errors import sanitize
from .consul import Consul, ConsulKey

# The newest key layout that this release knows.
SCHEMA = 1
# How the target of a rollout begins that is a job.
_JOB = "job/"
# The last step of an agent run, in which it reports. The role sets it in tasks/run/finished.yml.
_REPORT_STEP = "report"
_JOB_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,95}", re.ASCII)
_BOOLEANS = {"true": True, "false": False}


@dataclass(frozen=True)
class NodeKeys:
    """The keys that concern a node.

    :param prefix: the prefix of all keys: empty, or text that ends with a slash.
    """

    host: str
    role: str
    prefix: str = ""

    @property
    def current_version(self) -> str:
        """The version that the fleet should run."""
        return f"{self.prefix}current_version"

    @property
    def schema(self) -> str:
        """The version of the key layout."""
        return f"{self.prefix}upgrade/schema"

    @property
    def record(self) -> str:
        """What the host has reported."""
        return f"{self.prefix}upgrade/hosts/{self.host}"

    @property
    def wake(self) -> str:
        """The key that planners write when they admit the host. Only the write counts."""
        return f"{self.prefix}upgrade/wake/{self.host}"

    @property
    def global_gate(self) -> str:
        """The global gate."""
        return f"{self.prefix}config_state/enable_puppet/global"

    @property
    def gates(self) -> tuple[str, ...]:
        """The gates of the host, of its role, and of all, in the order in which they decide."""
        folder = f"{self.prefix}config_state/enable_puppet/"
        return f"{folder}host/{self.host}", f"{folder}role/{self.role}", f"{folder}global"

    @property
    def legacy_gates(self) -> tuple[str, ...]:
        """The same gates in the layout of python-jiocloud."""
        folder = f"{self.prefix}config_state/"
        return tuple(f"{folder}{scope}/enable_puppet" for scope in (f"host/{self.host}", f"role/{self.role}", "global"))

    @property
    def holds(self) -> tuple[str, ...]:
        """The holds on the host, on its role, and on all."""
        folder = f"{self.prefix}upgrade/hold/"
        return f"{folder}host/{self.host}", f"{folder}role/{self.role}", f"{folder}global"

    def role_hold(self, role: str) -> str:
        """The hold on a role."""
        return f"{self.prefix}upgrade/hold/role/{role}"

    @property
    def holds_folder(self) -> str:
        """The key that is written whenever any hold is set or ended."""
        return f"{self.prefix}upgrade/hold/"

    @property
    def current_job(self) -> str:
        """The job that the fleet should run, as ``job/<id>``."""
        return f"{self.prefix}upgrade/current_job"

    def job(self, identifier: str) -> str:
        """A job: its command, arguments, hosts, expiry and signature."""
        return f"{self.prefix}upgrade/jobs/{identifier}"

    @property
    def job_gates(self) -> tuple[str, ...]:
        """What admits the host to the current job: its own key, and that of its role, in the order in which they decide."""
        folder = f"{self.prefix}upgrade/job_gates/"
        return f"{folder}host/{self.host}", f"{folder}role/{self.role}"

    @property
    def job_record(self) -> str:
        """What the host has reported of the last job that it was admitted to."""
        return f"{self.prefix}upgrade/job_records/{self.host}"

    @property
    def job_output(self) -> str:
        """The output of the last jobs of the host."""
        return f"{self.prefix}upgrade/job_output/{self.host}"

    @property
    def all(self) -> list[str]:
        """All that are read each time beside the key of the holds' folder, sorted. Records are large, and such a read also returns keys that
        only begin like these.
        """
        single = (self.current_version, self.schema, self.wake, self.current_job)
        return sorted({*single, *self.gates, *self.legacy_gates, *self.holds, *self.job_gates})


@dataclass(frozen=True)
class Answer:
    """The answer of the gates.

    :param is_open: whether the host may run; None if a key can't be read, which counts as closed.
    :param reason: the answer as a phrase, for messages.
    :param version: the version that the fleet should run; None if there is none.
    :param is_pending: whether it is closed only because a rollout has not admitted it yet.
    :param held: the host's own hold in its record; None if there is none.
    :param post_upgrade: the version after whose upgrade the host may run the tasks of its services; None for none.
    :param report: the state and the version in the host's record, empty if it has none; None if the record was not read.
    :param step: the step in the host's record, at which a failed agent run ended; None for none.
    """

    is_open: Optional[bool]
    reason: str
    version: Optional[str] = None
    is_pending: bool = False
    held: Optional[str] = None
    post_upgrade: Optional[str] = None
    report: Optional[tuple[str, str]] = None
    step: Optional[str] = None

    def has_failed_report(self, version: Optional[str]) -> bool:
        """Return whether an agent run at a version did all its steps, but could not report its success."""
        return self.report == ("failed", version) and self.step == _REPORT_STEP


def is_job_id(text: str) -> bool:
    """Return whether a text can be the ID of a job, which is part of keys and file names."""
    return _JOB_ID.fullmatch(text) is not None


def keys_to_confirm(keys: NodeKeys, entries: Mapping[str, ConsulKey], has_token: bool) -> list[str]:
    """Return one key of each group of gates or holds that came back empty. The token may not be allowed to read them.

    Consul silently leaves out of a tree what a token may not read: a hidden gate would look like the default, which is open, and a hidden
    hold like no hold. Reading a single key fails instead.

    :param entries: what one consistent read of ``keys.all`` and the key of the holds' folder returned.
    :param has_token: whether the node uses a token. Without one, and if there are other keys, only holds are confirmed.
    """
    # Each rollout and each hold writes the folder's own key, so that this seldom takes a request.
    holds = (keys.holds_folder, *keys.holds)
    # A hidden pause would admit the host. If the layout has a version, all pauses are holds already.
    groups = [keys.gates, holds, *([] if keys.schema in entries else [keys.legacy_gates])]
    if entries and not has_token:
        groups = [holds]
    return [group[-1] for group in groups if not any(key in entries for key in group)]


def read_keys(consul: Consul, keys: NodeKeys, has_token: bool) -> dict[str, ConsulKey]:
    """Return the keys of a node that exist. Every reader of gates and holds uses it, because a policy can be removed at any time.

    :raises ConsulError: also :class:`Denied`, and that also if the token may not read gates or holds: they are not just missing then.
    """
    found = consul.read(keys.all, keys.holds_folder)
    for key in keys_to_confirm(keys, found, has_token):
        entry = consul.get(key)
        if entry is not None:
            # It was written after the first read.
            found[key] = entry
    return found


def other_roles(keys: NodeKeys, record: ConsulKey) -> tuple[str, ...]:
    """Return the other roles of the host since it last started: the one that it reported last, and the one before that.

    The latter is empty if an operator has ended its hold for this host.
    """
    data = _record(record)
    known = {one for name in ("role", "former_role") if (one := _text(data, name)) is not None}
    return tuple(sorted(known - {keys.role}))


def answer(keys: NodeKeys, entries: Mapping[str, ConsulKey], default: bool, others: Sequence[str] = ()) -> Answer:
    """Return the answer for a host.

    :param entries: what one consistent read of ``keys.all`` returned, the holds of its other roles, and the host's record if it was read, which is
        empty if it is missing.
    :param default: the answer if no gate is set.
    :param others: its other roles.
    """
    found = _answer(keys, entries, default)
    # A hold keeps Puppet out of a pending host too.
    for role in others if found.is_open or found.is_pending else ():
        if role and keys.role_hold(role) in entries:
            reason = f"closed: its former role {sanitize(role, 255)} is held by {sanitize(keys.role_hold(role), 400)}"
            return replace(found, is_open=False, is_pending=False, reason=reason)
    own, of_role, _global = keys.gates
    gate = entries.get(of_role)
    if not others or not found.is_open or own in entries or gate is None or not gate.flags:
        # Only planners write a time into a gate. Without one, an operator has opened it for all hosts of the role.
        return found
    reason = (
        f"closed: its role was {sanitize(others[-1] or 'another one', 255)} before, and planners may have opened {of_role} before it was {keys.role}; "
        "its own gate has to open"
    )
    return replace(found, is_open=False, reason=reason)


def _answer(keys: NodeKeys, entries: Mapping[str, ConsulKey], default: bool) -> Answer:
    """Return the answer for a host that always had its role."""
    version, problem = _version(keys, entries)
    problem = problem or _newer_schema(keys, entries)
    record = _record(entries.get(keys.record))
    report = (_text(record, "state") or "", _text(record, "version") or "") if keys.record in entries else None
    facts = Answer(
        None,
        problem,
        version,
        held=_text(record, "held"),
        post_upgrade=_post_upgrade(record),
        report=report,
        step=_text(record, "step"),
    )
    if problem:
        return facts
    for key in keys.holds:
        if key in entries:
            return replace(facts, is_open=False, reason=f"closed: held by {key}")
    for key in keys.legacy_gates:
        entry = entries.get(key)
        # An operator's pause. Gates that planners wrote there have flags, and are copies of the others.
        if entry is not None and not entry.flags and _is_open(entry, version) is not True:
            return replace(facts, is_open=False, reason=f"closed: {key} is an operator's pause")
    for key in keys.gates:
        entry = entries.get(key)
        if entry is None:
            continue
        opened = _is_open(entry, version)
        if opened is None:
            return replace(facts, reason=f"the gate {key} is neither True, False nor a version")
        text = sanitize(entry.value.decode("utf-8", "replace").strip(), 200)
        state = "open" if opened else "closed"
        pending = not opened and key == keys.global_gate and entry.flags != 0
        return replace(facts, is_open=opened, reason=f"{state}: {key} is {text}", is_pending=pending)
    return replace(facts, is_open=default, reason=f"{'open' if default else 'closed'}: no gate is set for {keys.host}")


def admitted_job(keys: NodeKeys, entries: Mapping[str, ConsulKey]) -> Optional[str]:
    """Return the ID of the job that the host is admitted to; None for none, and if any key is not as planners write it.

    :param entries: what one consistent read of ``keys.all`` returned.
    """
    if _newer_schema(keys, entries) or any(key in entries for key in keys.holds):
        return None
    version, _problem = _version(keys, entries)
    for key in keys.legacy_gates:
        entry = entries.get(key)
        if entry is not None and not entry.flags and _is_open(entry, version) is not True:
            return None
    entry = entries.get(keys.current_job)
    target = entry.value.decode("utf-8", "replace").strip() if entry is not None else ""
    identifier = target[len(_JOB) :]
    if not target.startswith(_JOB) or not is_job_id(identifier):
        return None
    gate = next((entries[key] for key in keys.job_gates if key in entries), None)
    is_open = gate is not None and gate.flags > 0 and _is_open(gate, None) is True
    return identifier if is_open else None


def _version(keys: NodeKeys, entries: Mapping[str, ConsulKey]) -> tuple[Optional[str], str]:
    """Return the version, and why it can't be read; the latter is empty if it can."""
    entry = entries.get(keys.current_version)
    if entry is None:
        return None, ""
    try:
        text = entry.value.decode().strip()
    except UnicodeDecodeError:
        text = "/"
    if not text:
        return None, ""
    if "/" in text or not text.isprintable() or len(text) > 255 or text.lower() in _BOOLEANS:
        return None, f"{keys.current_version} is not a version"
    return text, ""


def _newer_schema(keys: NodeKeys, entries: Mapping[str, ConsulKey]) -> str:
    entry = entries.get(keys.schema)
    if entry is None:
        return ""
    text = entry.value.decode("utf-8", "replace").strip()
    try:
        layout = int(text[:20])
    except ValueError:
        return f"{keys.schema} is not a number"
    return (
        f"{keys.schema} is {sanitize(text, 40)}, and this release knows layouts up to {SCHEMA}"
        if layout > SCHEMA
        else ""
    )


def _is_open(entry: ConsulKey, version: Optional[str]) -> Optional[bool]:
    """Return whether a gate's value opens it; None if it can't be read."""
    try:
        text = entry.value.decode().strip()
    except UnicodeDecodeError:
        return None
    boolean = _BOOLEANS.get(text.lower())
    if boolean is not None:
        return boolean
    if text and text == version:
        return True
    looks_like_version = text.isprintable() and any(one.isdigit() for one in text) and text[0] not in "{[\"'"
    return False if looks_like_version else None


def _record(entry: Optional[ConsulKey]) -> Mapping[str, Any]:
    """Return the host's record; empty if it is missing or can't be read."""
    try:
        data = json.loads(entry.value) if entry is not None else {}
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _text(record: Mapping[str, Any], name: str) -> Optional[str]:
    found = record.get(name)
    return found if isinstance(found, str) else None


def _post_upgrade(record: Mapping[str, Any]) -> Optional[str]:
    """Return the version of a record whose host is admitted to post-upgrade tasks, or has begun them. It repeats them until they do not fail."""
    return _text(record, "version") if record.get("post") in ("open", "started", "failed") else None
