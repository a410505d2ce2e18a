# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one exception of the collection: a message for people and a code for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

# Every code has its section in docs/errors.md, or is in a row there.
Code = Literal[
    "aborted",
    "agent_on_push_host",
    "at_work",
    "bad_check",
    "bad_connection",
    "bad_environment",
    "bad_folder",
    "bad_gate_value",
    "bad_hook",
    "bad_instructions",
    "bad_instructions_file",
    "bad_job",
    "bad_lock_file",
    "bad_maintenance",
    "bad_metrics_file",
    "bad_name",
    "bad_options",
    "bad_report",
    "bad_role_pattern",
    "bad_roles",
    "bad_service",
    "bad_sources",
    "bad_tasks",
    "bad_upgrade_roles",
    "bad_variable",
    "bad_version",
    "busy",
    "closed_by_hand",
    "conflict",
    "conflicting_rules",
    "consul_error",
    "control_plane_first",
    "daemon_fault",
    "data_plane_first",
    "denied",
    "empty_variable",
    "expired",
    "failure_budget",
    "fleet_too_small",
    "forbidden_upgrade",
    "foreign_policy",
    "foreign_version",
    "haproxy_refused",
    "haproxy_unreachable",
    "hook_failed",
    "in_the_way",
    "incomparable_versions",
    "job_under_way",
    "leased",
    "leftover_arguments",
    "limit_waits",
    "limited",
    "lost_lock",
    "may_not_stop",
    "migrating",
    "missing_library",
    "missing_option",
    "missing_step",
    "needs_tasks",
    "newer_schema",
    "no_cap",
    "no_daemon",
    "no_host_left",
    "no_hosts",
    "no_instructions",
    "no_older_layout",
    "no_planner",
    "no_previous_version",
    "no_push",
    "no_reason",
    "no_rollout",
    "no_services",
    "no_sources",
    "no_such_tag",
    "no_target",
    "no_watch",
    "not_admitted",
    "not_complete",
    "not_in_inventory",
    "not_on_host",
    "not_runnable",
    "not_running",
    "not_signed",
    "not_up",
    "not_upgradable",
    "nothing_to_approve",
    "older_schema",
    "once_failed",
    "once_gone",
    "other_machine",
    "other_planner_host",
    "other_services",
    "out_of_memory",
    "overtaken",
    "packages_failed",
    "partial_tags",
    "post_upgrade_pending",
    "provider_changed",
    "provider_failed",
    "provider_gone",
    "puppet_disabled",
    "puppet_failed",
    "puppet_locked",
    "puppet_timeout",
    "redirected",
    "refused_option",
    "rollout_under_way",
    "rules_left_out",
    "still_busy",
    "stuck",
    "timeout",
    "tls",
    "too_few_servers",
    "too_slow",
    "unknown_host",
    "unknown_job",
    "unknown_layout",
    "unknown_limit",
    "unknown_names",
    "unknown_option",
    "unknown_role",
    "unknown_server",
    "unknown_task_group",
    "unknown_variable",
    "unknown_version",
    "unplaced_hosts",
    "unreachable",
    "unread_inventory",
    "unreadable_folder",
    "unreadable_gate",
    "unreadable_ledger",
    "unreadable_provider",
    "unreadable_result",
    "unreadable_schema",
    "unreadable_version",
    "untrusted_services",
    "unwritten_sources",
    "unwritten_token",
    "validation_failed",
    "went_back",
]

# The codes of what ends by itself while a run waits: Consul, or a proxy before it, gives no answer of Consul.
TEMPORARY_CODES = ("unreachable", "redirected")


class UpgradeError(Exception):
    """An error that ends a call, with what an operator needs to act on it.

    :param code: a stable identifier that a caller can test for, such as ``bad_instructions``.
    :param message: what is wrong, where (host, key, file), why, and what to do next.
    :param details: the same facts as plain data.
    """

    def __init__(self, code: Code, message: str, **details: Any) -> None:
        """Store the message, its code and its details."""
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details

    def as_text(self) -> str:
        """Return the message after its code, as every failure is displayed: ``[bad_version] ...``."""
        return f"[{self.code}] {self.message}"

    def as_result(self) -> dict[str, Any]:
        """Return the result of a task that fails with this error."""
        return {"failed": True, "msg": self.as_text(), "failure": self.as_failure()}

    def as_failure(self) -> dict[str, Any]:
        """Return the ``failure`` value of a module: code, message and details."""
        return {"code": self.code, "message": self.message, "details": self.details}


@contextmanager
def needs_memory(what: str, written: Callable[[], str] = lambda: "Nothing was written.") -> Iterator[None]:
    """Turn a lack of memory within the block into a failure.

    :param what: what was done, such as ``the fleet was planned``.
    :param written: returns a sentence on what was written before.
    :raises UpgradeError: ``out_of_memory``.
    """
    try:
        yield
        return
    except MemoryError:
        # The failure is raised below, where the error no longer holds what filled the memory.
        pass
    raise UpgradeError(
        "out_of_memory",
        f"Memory ran out while {what}. {written()} Raise the limit of the process (ulimit -v, LimitAS of a service), or give the "
        "machine more memory: 100,000 hosts need 400 MiB. Then run the same command again.",
    )
