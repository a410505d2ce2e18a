# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The job that an operator asks for: its ID, its hosts, its expiry and its signature."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from .._codecs.job import MOST_SECONDS, NAMESPACE, Job, encode_job
from .._common import runtime
from .._common.errors import UpgradeError
from .._common.names import in_order, is_command_name, is_job, job_id, target_text
from .._common.sanitize import sanitize, truncate_middle, truncated_repr
from .._common.strict_values import parse_duration
from .._fleet.fleet import find_members
from .._fleet.host_patterns import select_hosts, select_roles
from .._fleet.ledger import Ledger
from .._rules.instructions import parse
from .._rules.role_order import resolve
from .._state.store import Store, current_user

# Time until a job expires, if its operator does not say.
EXPIRES = "1d"
_SECONDS_TO_SIGN = 60
# In bytes. Nodes refuse larger ones.
_MOST_BYTES = 60_000


def new_id(command: str) -> str:
    """Return an ID for a job: its command, the time (UTC) and a random part.

    :raises UpgradeError: ``bad_job`` for a name that no command can have.
    """
    if not is_command_name(command):
        raise _bad(
            f"run: {truncated_repr(command)} can't be the name of a command. Give lowercase letters, digits, - and _",
            run="NAME",
        )
    at = time.strftime("%Y%m%d-%H%M%S", time.gmtime(runtime.now()))
    return f"{command}-{at}-{runtime.new_id()[:6]}"


def requested_job(
    store: Store,
    options: Mapping[str, Any],
    fleet: Mapping[str, str] | None,
    role_pattern: str | None,
    rules: Mapping[str, Any] | None,
) -> Job:
    """Return the job that options ask for, signed if they name a key.

    :param options: ``run``, ``args``, ``only``, ``expires``, ``sign_with``, ``by_ansible``, ``id``, ``by`` and ``reason``.
    :param fleet: host -> role.
    :param rules: the rules of the call, whose groups ``only`` may name; None for those of the ledger.
    :raises UpgradeError: ``bad_job``, ``unknown_limit``, ``not_signed``, and what :meth:`Store.snapshot` raises.
    """
    command = str(options["run"])
    identifier = options.get("id") or new_id(command)
    seconds = _expires(options.get("expires", EXPIRES))
    if not is_command_name(command) or not is_job(f"job/{identifier}"):
        raise _bad(
            f"run: {truncated_repr(command)} can't be the name of a command. Give lowercase letters, digits, - and _",
            run="NAME",
        )
    if not 60 <= seconds <= MOST_SECONDS:
        raise _bad(
            f"expires: {seconds} is not from 60 to {MOST_SECONDS} seconds. Give the seconds after which no node begins the job",
            expires=EXPIRES,
        )
    roles, hosts = _targets(store, options.get("only"), fleet, role_pattern, rules)
    now = int(runtime.now())
    job = Job(
        identifier,
        command,
        now + int(seconds),
        options.get("args") or {},
        roles,
        hosts,
        by=truncate_middle(sanitize(options.get("by") or current_user())),
        at=now,
        reason=truncate_middle(sanitize(options.get("reason") or "")),
        by_ansible=bool(options.get("by_ansible")),
    )
    try:
        size = len(encode_job(job))
    except ValueError as error:
        raise _bad(f"args: {error}. Give values that JSON has") from error
    if size > _MOST_BYTES:
        raise _bad(
            f"The job takes {size} bytes, and at most {_MOST_BYTES} are allowed. Give shorter args, or roles instead of hosts as only"
        )
    key = options.get("sign_with")
    if key and job.by_ansible:
        raise _bad(
            "sign_with: nodes do not verify tasks that Ansible runs. Leave sign_with out", without=("sign_with",)
        )
    return replace(job, signature=_signature(job, store.keys.prefix, str(key))) if key else job


def _expires(value: object) -> int:
    """Return the seconds until a job expires.

    :raises UpgradeError: ``bad_job``.
    """
    try:
        return parse_duration(value, "expires")
    except UpgradeError as error:
        raise _bad(error.message.rstrip("."), expires=EXPIRES) from None


def _targets(
    store: Store,
    only: Sequence[str] | None,
    fleet: Mapping[str, str] | None,
    role_pattern: str | None,
    rules: Mapping[str, Any] | None,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the roles that patterns select by name, and the hosts of other roles that they select; none for the whole fleet.

    :param only: the patterns; None for the whole fleet.
    :raises UpgradeError: ``bad_job`` for an empty list, which usually means an unset variable.
    """
    if only is None:
        return (), ()
    if not only:
        raise _bad(
            "only is an empty list. Name roles, groups or hosts, or leave it out for the whole fleet", only="NAME"
        )
    snapshot = store.snapshot(of_job=True)
    ledger = snapshot.ledger
    members = find_members(fleet, snapshot, role_pattern or (ledger.role_pattern if ledger else None)).members
    stored = (ledger.before.get("instructions", {}) if ledger.is_job else ledger.instructions) if ledger else {}
    group = resolve(parse(stored if rules is None else rules), set(members.values()), members).group
    try:
        hosts, whole = select_hosts(only, members, group), select_roles(only, members, group)
    except UpgradeError as error:
        # That is what the patterns of a run are called.
        raise UpgradeError(error.code, f"only: {error.message.removeprefix('limit: ')}", **error.details) from None
    return tuple(in_order(whole)), tuple(in_order(host for host in hosts if members[host] not in whole))


def _signature(job: Job, prefix: str, key: str) -> str:
    """Return the armored signature of a job.

    :param key: the file of a private key, or of a public key whose private one an ssh-agent has.
    :raises UpgradeError: ``not_signed``.
    """
    path = Path(key).expanduser()
    words = ["ssh-keygen", "-Y", "sign", "-q", "-f", str(path), "-n", NAMESPACE]
    try:
        # In a session of its own, without a terminal: it can't ask for a passphrase, and says so.
        made = subprocess.run(
            words,
            input=job.signed_text(prefix),
            capture_output=True,
            timeout=_SECONDS_TO_SIGN,
            check=False,
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = getattr(error, "strerror", None) or f"no answer in {_SECONDS_TO_SIGN} s"
        raise _not_signed(key, f"ssh-keygen does not run: {reason}") from error
    if made.returncode:
        lines = made.stderr.decode("utf-8", "replace").strip().splitlines()
        raise _not_signed(key, sanitize(lines[-1]) if lines else f"ssh-keygen ended with {made.returncode}")
    return made.stdout.decode("ascii", "replace")


def as_data(args: Any) -> dict[str, Any]:
    """Return arguments as plain JSON data, without the types of Ansible.

    :raises UpgradeError: ``bad_job``.
    """
    try:
        found = json.loads(json.dumps(args or {}))
    except (ValueError, TypeError) as error:
        raise _bad(f"args: {error}. Give values that JSON has") from error
    if not isinstance(found, dict):
        raise _bad("args is no mapping of names to values")
    return found


def needs_tasks(job: Ledger) -> UpgradeError:
    """Return the error for something that would admit hosts to a job whose tasks Ansible runs, and does not have these tasks."""
    return UpgradeError(
        "needs_tasks",
        f"Ansible runs the tasks of {target_text(job.version)}, and this call has none, so it admits no host. Continue with the tasks: "
        f"ansible-playbook convoy.upgrade.command -e job={job_id(job.version)} -e run_tasks=FILE.",
        variables={"run_tasks": "FILE"},
    )


@contextmanager
def beginning(job: Job | None) -> Iterator[None]:
    """Say which token begins a job if Consul refuses that to the token in use; None for a write that begins no job.

    :raises UpgradeError: ``denied``.
    """
    try:
        yield
    except UpgradeError as error:
        if job is None or error.code != "denied":
            raise
        raise UpgradeError(
            error.code,
            f"{error.message} To begin a job, give a token of the kind commander, which consul_upgrade_acl creates.",
            **error.details,
        ) from error


def _bad(text: str, *, without: Sequence[str] = (), **variables: str) -> UpgradeError:
    """Return the error for a job that can't begin.

    :param without: variables to leave out of the next command.
    :param variables: variables of the next command.
    """
    details = {"variables": variables} if variables else {"without": list(without)} if without else {}
    return UpgradeError("bad_job", f"{text}. No job begins.", **details)


def _not_signed(key: str, reason: str) -> UpgradeError:
    return UpgradeError(
        "not_signed",
        f"sign_with: the job can't be signed with {key}: {reason}. No job begins. Give the file of a key without passphrase, or load it into an "
        "ssh-agent (ssh-add) and give its .pub file.",
    )
