# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A push run, prepared once: which hosts each play upgrades, where they come from and what they run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...module_utils._codecs.job import Job
from ...module_utils._common.errors import UpgradeError
from ...module_utils._common.names import listing, plural
from ...module_utils._common.sanitize import limit_to, option
from ...module_utils._fleet.fleet import WITH_VERSION
from ...module_utils._fleet.host_patterns import pattern_without, select_hosts
from ...module_utils._host_states.state_names import PENDING, UPGRADED
from ...module_utils._rules.health_rules import parse_health_rules
from .._compose.task_order import IS_REVERSED
from .._run.scope import RunScope, hosts_behind, hosts_with_post_upgrade_tasks, run_scope
from .._upgrade_path.allowed_upgrades import ForbiddenUpgrades, forbidden_upgrades
from .._upgrade_path.last_hosts import PendingHosts, pending_hosts
from .._upgrade_path.routes import Routes, routes_of, unknown_hosts
from .run import RunTaskGroup, task_groups_from

POST_UPGRADE = "post_upgrade"


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What a run is prepared from.

    :param version: the target.
    :param fleet: host -> role, as the inventory has it.
    :param plan: a result of ``consul_upgrade_plan``, in check mode.
    :param composition: a result of ``compose_upgrade_tasks``.
    :param upgrade_roles: role -> its plane and services.
    :param part: all, a plane, role for one role alone, or after for no host.
    :param limit: hosts, roles and groups; empty for all.
    :param handed_over: host patterns of what planner services may admit; None for all hosts.
    :param declared: returns the version that an operator declares for a host; None if nothing is declared.
    :param providers: provider -> the version that an operator declares.
    """

    version: str
    fleet: Mapping[str, str]
    plan: Mapping[str, Any]
    composition: Mapping[str, Any]
    upgrade_roles: Mapping[str, Any]
    part: str = "all"
    role: str = ""
    limit: tuple[str, ...] = ()
    retry_failed: bool = False
    handed_over: tuple[str, ...] | None = None
    declared: Callable[[str], object] = lambda _host: None
    providers: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """What the plays of a run and its daemon need.

    :param tasks_folder: the composed tasks, a folder for each role below it.
    :param fleet: host -> role, as the inventory has it. In a job, of the whole fleet.
    :param task_groups: role -> its task groups, for the roles that have services.
    :param left_out: why this run does not upgrade some of its hosts, a sentence each.
    :param post_upgrade: host -> the version that it reported, for hosts with post-upgrade tasks; empty before every host is upgraded.
        Pull hosts are among them.
    :param complete: whether every host of the fleet is upgraded.
    :param task_timeout: the longest that a task may take (seconds); 0 for no limit.
    :param limit: host patterns of the hosts that the run may admit; empty for all.
    :param outside_limit: the hosts that still have to run their post-upgrade tasks and that the limit leaves out, or that wait for such hosts.
    :param composition: what the tasks were composed to, and ``upgrade_roles`` what they were composed from.
    :param job: the job of which it is a run; None for an upgrade.
    :param pending: the hosts of the fleet that are still to begin, when the run is prepared; none in a job.
    :param handed_over: host patterns of what planner services may admit; None for all hosts.
    :param excluded: host patterns that exclude the hosts which are left out. Planner services may not admit them either.
    :param is_whole: whether the rollout is to be complete after the run: it is for all hosts and all of their tasks.
    :param only_in_consul: host -> role, of hosts that upgrade themselves and are not in the inventory.
    """

    version: str
    tasks_folder: str
    fleet: Mapping[str, str]
    task_groups: Mapping[str, tuple[RunTaskGroup, ...]]
    scope: RunScope
    routes: Routes
    left_out: tuple[str, ...]
    retry_failed: bool
    post_upgrade: Mapping[str, str] = field(default_factory=dict)
    complete: bool = False
    task_timeout: int = 0
    limit: tuple[str, ...] = ()
    outside_limit: tuple[str, ...] = ()
    composition: Mapping[str, Any] = field(default_factory=dict)
    upgrade_roles: Mapping[str, Any] = field(default_factory=dict)
    job: Job | None = None
    pending: PendingHosts = field(default_factory=PendingHosts)
    handed_over: tuple[str, ...] | None = None
    excluded: tuple[str, ...] = ()
    is_whole: bool = False
    only_in_consul: Mapping[str, str] = field(default_factory=dict)

    @property
    def members(self) -> dict[str, str]:
        """Return host -> role, of the whole fleet."""
        return {**self.fleet, **self.only_in_consul}

    def hosts_of(self, play: str) -> tuple[str, ...]:
        """Return the hosts that a play waits for."""
        return tuple(self.post_upgrade) if play == POST_UPGRADE else self.scope.plays[play]

    @property
    def only_validates(self) -> bool:
        """Return whether the tags on the command line select only the validation, so that no rollout begins."""
        return bool(self.scope.validate) and not any(self.scope.plays.values())

    def as_result(self, planner: str = "") -> dict[str, Any]:
        """Return what the playbooks need, as plain data.

        :param planner: the planner host.
        """
        pushed_after = [host for host in self.post_upgrade if self.fleet.get(host) in self.task_groups]
        # Also those that failed, and that only a run with retry_failed retries.
        members = (host for hosts in self.scope.plays.values() for host in hosts)
        pushed = (host for host in members if self.fleet.get(host) in self.task_groups)
        hosts = dict.fromkeys((*self.scope.pushed_hosts, *self.scope.validate, *pushed_after, *pushed))
        roles = self.composition.get("roles", {})
        return {
            "pushes": True,
            "role_order": self.composition.get("role_order", {}),
            "version": self.version,
            "tasks_folder": self.tasks_folder,
            **{play: list(pushed) for play, pushed in self.scope.pushed.items()},
            "waves": self.scope.batches(dict.fromkeys((*([planner] if planner else ()), *self.fleet))),
            "validate": list(self.scope.validate),
            "only_validates": self.only_validates,
            "resumed": list(self.scope.resumed),
            POST_UPGRADE: pushed_after,
            "plays": [play for play in (*self.scope.plays, POST_UPGRADE) if self.hosts_of(play)],
            "complete": self.complete,
            "task_timeout": self.task_timeout,
            "hosts": {
                host: {
                    "tasks_folder": f"{self.tasks_folder}/{self.fleet[host]}",
                    IS_REVERSED: roles.get(self.fleet[host], {}).get(IS_REVERSED, False),
                    "version_before": self.post_upgrade.get(host, self.routes.origins.get(host, "")),
                    "checkpoints": list(self.routes.ahead.get(host, ())),
                }
                for host in hosts
            },
            "providers": dict(self.routes.providers),
            "left_out": list(self.left_out),
        }


def check_allowed(request: RunRequest) -> ForbiddenUpgrades:
    """Check that every host of the fleet may go to the version, also the hosts that are not in this run.

    :returns: ``left_out`` has the hosts whose versions can't be compared.
    :raises UpgradeError: ``forbidden_upgrade``.
    """
    forbidden = forbidden_upgrades(
        request.plan, request.composition, request.version, _declared(request), request.providers
    )
    if forbidden.reasons:
        total = len(request.plan["hosts"])
        subject = f"{len(forbidden.hosts)} of {plural(total, 'host')}" if forbidden.hosts else "a provider"
        raise UpgradeError(
            "forbidden_upgrade",
            f"Nothing was touched: {subject} may not go to {request.version}. {' '.join(forbidden.reasons)} Go to another version first, "
            "hold these hosts (ansible-playbook convoy.upgrade.hold), or allow this upgrade in upgrade_roles or in meta/upgrade.yml of these services.",
            hosts=list(forbidden.hosts),
        )
    return forbidden


def services_of(composition: Mapping[str, Any]) -> dict[str, str]:
    """Return role -> the ID of the tasks of its services, for roles whose hosts run them themselves.

    :param composition: a result of ``compose_upgrade_tasks``.
    """
    return {role: data["tasks_id"] for role, data in composition.get("pull_roles", {}).items()}


def check_services(request: RunRequest) -> None:
    """Check that pull hosts that are still to be admitted have the tasks of their services as they are now. Held hosts are not checked.

    :raises UpgradeError: ``other_services``.
    """
    needed = services_of(request.composition)
    other = {
        host: view
        for host, view in request.plan["hosts"].items()
        if view["role"] in needed
        # Planners admit no such host, so it is still pending in the plan.
        and view["state"] == PENDING
        and view["services"] not in (needed[view["role"]], WITH_VERSION)
    }
    if not other:
        return
    # A host without a version reports nothing when it is enrolled.
    unknown = [host for host, view in other.items() if not view["version"]]
    known = [host for host in other if host not in unknown]
    more = f" Deliver them: ansible-playbook convoy.upgrade.enroll {limit_to(known[:20])}." if known else ""
    if unknown:
        more += (
            f" {listing(unknown, 20)} never reported; give the version that it runs: ansible-playbook convoy.upgrade.enroll {limit_to(unknown[:20])} "
            "-e puppet_gate_version=VERSION."
        )
    raise UpgradeError(
        "other_services",
        f"Nothing was touched: {plural(len(other), 'pull host')} {'has' if len(other) == 1 else 'have'} no tasks of services, or other ones than "
        f"upgrade_roles has now: {listing([*other], 20)}.{more}",
        hosts=[*other],
    )


def _refuse_agents(request: RunRequest, hosts: Iterable[str]) -> None:
    """Refuse hosts of the run that have the node agent too. Those on which a push run has begun are not checked: the run has to end there.

    The agent of an admitted host would begin the same upgrade beside Ansible, or go on with it, also if the host was held or lost before.

    :raises UpgradeError: ``agent_on_push_host``.
    """
    views = request.plan["hosts"]

    def is_agents(view: Mapping[str, Any]) -> bool:
        # An agent has no steps, unless it runs services.
        begun_by_push = view["begun"] == request.version and view["steps"] and not view["services"]
        return bool(view["release"]) and view["state"] != UPGRADED and not begun_by_push

    found = [host for host in hosts if is_agents(views[host])]
    if found:
        they = "it" if len(found) == 1 else "them"
        raise UpgradeError(
            "agent_on_push_host",
            f"Nothing was touched: Ansible upgrades {listing(found, 20)}, and the agent convoy-node on {they} would do so at the same time. Either "
            "have the agent do it (pull: true in upgrade_roles, then ansible-playbook convoy.upgrade.enroll), or "
            "remove it: run systemctl disable --now convoy-node.path "
            "convoy-node (or rm /etc/cron.d/convoy-node), convoy-node run -e puppet_gate_leave=true and rm /etc/convoy/node.json there, then "
            f"ansible-playbook convoy.upgrade.forget {option('host', ','.join(found[:20]))}.",
            hosts=found,
        )


def _refuse_unknown_to_ansible(fleet: Mapping[str, str], hosts: Iterable[str], before: str = "") -> None:
    """Refuse hosts that only Consul knows, such as one that was removed from the inventory and is not forgotten.

    :param fleet: host -> role, as the inventory has it.
    :param before: how the message begins.
    :raises UpgradeError: ``not_in_inventory``.
    """
    unknown = [host for host in hosts if host not in fleet]
    if unknown:
        names = ",".join(unknown[:20])
        raise UpgradeError(
            "not_in_inventory",
            f"{before}{listing(unknown, 20)} reported to Consul and {'is' if len(unknown) == 1 else 'are'} not in the inventory, so "
            "Ansible can't work there. Add what is missing to the inventory. For hosts that no longer exist, run "
            f"ansible-playbook convoy.upgrade.forget {option('host', names)}.",
            hosts=unknown,
        )


def prepare_run(request: RunRequest, tasks_folder: str) -> PreparedRun:
    """Return the run.

    :raises UpgradeError: ``forbidden_upgrade``, ``no_host_left``, ``not_in_inventory``, ``agent_on_push_host``, and what :func:`run_scope` and
        :func:`routes_of` raise.
    """
    reasons = dict(check_allowed(request).left_out)
    scope = _scope(request, reasons)
    routes = routes_of(
        request.plan, scope.pushed_hosts, request.composition, request.version, _declared(request), request.providers
    )
    if routes.left_out:
        reasons |= routes.left_out
        scope = _scope(request, reasons)
    _refuse_unknown_to_ansible(request.fleet, scope.pushed_hosts, "Nothing was touched: ")
    _refuse_agents(request, scope.pushed_hosts)
    left_out = tuple(f"{host} is left out: {reasons[host]}." for host in scope.left_out)
    if left_out and not any(scope.plays.values()):
        raise UpgradeError(
            "no_host_left",
            f"Nothing was touched: no host of this run can go to {request.version}. {' '.join(left_out)} Have these hosts report "
            "another version or hold them (ansible-playbook convoy.upgrade.hold); then run the same command again.",
        )
    return PreparedRun(
        request.version,
        tasks_folder,
        request.fleet,
        task_groups_from(request.composition),
        scope,
        routes,
        left_out,
        request.retry_failed,
        task_timeout=_task_timeout(request.plan),
        limit=request.limit,
        handed_over=request.handed_over,
        excluded=tuple(map(pattern_without, scope.left_out)),
        composition=request.composition,
        upgrade_roles=request.upgrade_roles,
        pending=pending_hosts(request.plan, request.limit),
        is_whole=request.part == "all" and not request.limit and not left_out,
        only_in_consul=_only_in_consul(request.fleet, request.plan, request.composition),
    )


def prepare_job(job: Job, plan: Mapping[str, Any]) -> PreparedRun:
    """Return the run of a job whose tasks Ansible runs. It has one play, and no upgrade paths.

    :param plan: a result of ``consul_upgrade_plan`` for the job in check mode, with all hosts.
    """
    fleet = {host: str(view["role"]) for host, view in plan["hosts"].items()}
    # Other hosts are in the plan too, as those that work on something else take slots.
    roles, hosts = (plan["targets"].get(name, ()) for name in ("roles", "hosts"))
    others = [host for host, role in fleet.items() if (roles or hosts) and role not in roles and host not in hosts]
    composition: dict[str, Any] = {"roles": {role: {"task_groups": []} for role in fleet.values()}}
    return PreparedRun(
        job.target,
        "",
        fleet,
        task_groups_from(composition),
        run_scope(plan, {}, composition).without(others),
        Routes({}, {}, {}, {}, {}, ()),
        (),
        retry_failed=False,
        task_timeout=_task_timeout(plan),
        job=job,
    )


def with_post_upgrade(run: PreparedRun, plan: Mapping[str, Any]) -> PreparedRun:
    """Return the run with the hosts that have post-upgrade tasks, also those that joined since; none before every host is upgraded.

    :param plan: a result of ``consul_upgrade_plan`` after the upgrade.
    :raises UpgradeError: ``not_in_inventory``, ``unknown_limit``.
    """
    hosts = hosts_with_post_upgrade_tasks(plan, run.composition, run.upgrade_roles) if plan["complete"] else ()
    views = plan["hosts"]
    unfinished = {*plan["post_upgrade"]}
    left = [host for host in hosts if host in unfinished]
    _refuse_unknown_to_ansible(run.fleet, [host for host in left if views[host]["role"] in run.task_groups])
    if run.limit:
        members = {host: view["role"] for host, view in views.items()}
        groups = {view["role"]: view["group"] for view in views.values() if view["group"]}
        limit = select_hosts(run.limit, members, groups)
        outside = [host for host in left if host not in limit]
        outside += hosts_behind(plan, (host for host in left if host in limit), outside)
        # Gates open only after all post-upgrade tasks.
        run = replace(run, outside_limit=tuple(outside))
        hosts = tuple(host for host in hosts if host in limit and host not in outside)
    return replace(
        run,
        post_upgrade={host: str(views[host]["version"] or "") for host in hosts},
        complete=bool(plan["complete"]) and not run.outside_limit,
        only_in_consul=_only_in_consul(run.fleet, plan, run.composition),
    )


def _only_in_consul(
    fleet: Mapping[str, str], plan: Mapping[str, Any], composition: Mapping[str, Any]
) -> dict[str, str]:
    """Return host -> role, of hosts that upgrade themselves and are not in the inventory. Ansible can't work on others."""
    roles = {host: str(view["role"]) for host, view in plan["hosts"].items() if host not in fleet}
    return {host: role for host, role in roles.items() if role not in composition["roles"]}


def _scope(request: RunRequest, left_out: Mapping[str, str]) -> RunScope:
    return run_scope(
        request.plan,
        request.upgrade_roles,
        request.composition,
        part=request.part,
        role=request.role,
        limit=request.limit,
        retry_failed=request.retry_failed,
        left_out=left_out,
    )


def _task_timeout(plan: Mapping[str, Any]) -> int:
    """Return the longest that a task may take under the rules of a plan (seconds), 0 for no limit."""
    return parse_health_rules(plan.get("instructions", {}).get("health") or {}).progress_deadline or 0


def _declared(request: RunRequest) -> dict[str, object]:
    return {host: request.declared(host) for host in unknown_hosts(request.plan, request.composition)}
