# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""ACL policies and tokens with the least privileges for controllers, commanders, planner services, nodes, viewers and migrators.

In Consul's ACL rules, ``key`` and ``key_prefix`` apply to keys, and the longest prefix wins.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any

from ..._common.errors import UpgradeError
from ..._common.names import check_name
from ..._consul.operations import Change
from ..._state.keys import Keys
from ..._state.legacy_keys import LegacyKeys
from ..._state.store import Store

# Consul's limit for the name of a policy, in characters.
_LONGEST = 128
# Consul's value for a secret if the token in use may read tokens but not write them.
_HIDDEN = "<hidden>"

CONTROLLER, COMMANDER, PLANNER, NODE, VIEWER, MIGRATOR = KINDS = (
    "controller",
    "commander",
    "planner",
    "node",
    "viewer",
    "migrator",
)


@dataclass(frozen=True, slots=True)
class TokenKind:
    """What a token is for.

    :param kind: ``controller`` plans and upgrades, ``commander`` does that and begins jobs, ``planner`` carries rollouts that a controller has
        begun, ``node`` reads gates and reports its own state, ``viewer`` reads everything, ``migrator`` moves keys to another layout.
    :param name: the host, for a node. For other kinds, a name to have several tokens; may be empty.
    :param publishes_health: whether a node may write its own checks to Consul's catalog. That also lets it register and deregister its
        own node there.
    :param runs_services: whether a node runs tasks of services. That lets it claim that it ran what one host runs for all, and write providers.
    """

    kind: str
    name: str = ""
    publishes_health: bool = False
    runs_services: bool = False

    def __post_init__(self) -> None:
        """Refuse a name that can't be part of a key.

        :raises UpgradeError: ``bad_name``.
        """
        if self.kind == NODE or self.name:
            check_name("host" if self.kind == NODE else "part", self.name, "name")

    def policy(self, keys: Keys) -> str:
        """Return the name of its policy, in characters that Consul allows. It includes the fleet's key prefix."""
        fleet = f"{_letters(keys.prefix.strip('/'))}--" if keys.prefix else ""
        name = f"convoy-upgrade-{fleet}{self.kind}" + (f"-{_letters(self.name)}" if self.name else "")
        if len(name) <= _LONGEST:
            return name
        return f"{name[: _LONGEST - 13]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"

    def description(self, keys: Keys) -> str:
        """Return the description that identifies its policy and its token."""
        fleet = f" of the fleet under {keys.prefix}" if keys.prefix else ""
        return f"convoy.upgrade: {self.kind}" + (f" {self.name}" if self.name else "") + fleet

    def rules(self, keys: Keys) -> str:
        """Return the rules of its policy, in Consul's ACL language.

        :raises UpgradeError: ``bad_name`` for a name that can't be written in that language.
        """
        # health.consul_checks and the inventory read the catalog and its checks.
        catalog = [("node_prefix", "", "read"), ("service_prefix", "", "read")]
        old = LegacyKeys(keys.prefix)
        # The keys of hosts in every layout: before, during and after a migration.
        gates, reports = (keys.gates, *old.gate_folders), (keys.reports, old.reports)
        if self.kind == NODE:
            grants = [
                *(("key", key, "read") for key in (keys.current_version, keys.schema, keys.current_job)),
                *(("key_prefix", folder, "read") for folder in (*gates, keys.job_gates, keys.jobs)),
                ("key_prefix", keys.holds, "read"),
                ("key_prefix", f"{keys.upgrade}sources/", "read"),
                ("key", keys.record(self.name), "write"),
                ("key", replace(keys, is_job=True).record(self.name), "write"),
                ("key", keys.job_output(self.name), "write"),
                ("key", keys.wake(self.name), "write"),
            ]
            if self.publishes_health:
                grants.append(("node", self.name, "write"))
            if self.runs_services:
                grants += [
                    *(("key_prefix", f"{keys.upgrade}{folder}/", "write") for folder in ("once", "providers")),
                    ("key_prefix", keys.leases, "read"),
                    ("key", keys.lease(self.name), "write"),
                    ("session", self.name, "write"),
                ]
        elif self.kind == MIGRATOR:
            grants = [
                ("key", keys.current_version, "write"),
                *(("key_prefix", folder, "write") for folder in (*reports, *gates, keys.upgrade)),
                ("session_prefix", "", "write"),
            ]
        elif self.kind == PLANNER:
            # It writes what passes write, but begins no rollout and gives no command of an operator. Passes publish what hosts report, and
            # admit hosts to their post-upgrade tasks in their records.
            grants = [
                ("key", keys.current_version, "read"),
                *(("key_prefix", folder, "write") for folder in (*reports, *gates)),
                ("key_prefix", keys.upgrade, "read"),
                # It ends the handover of a rollout after a restore of Consul.
                *(("key", key, "write") for key in (keys.ledger, keys.notified, keys.handover)),
                *(
                    ("key_prefix", folder, "write")
                    for folder in (
                        keys.records,
                        keys.history,
                        keys.marks,
                        keys.job_marks,
                        keys.wakes,
                        keys.planners,
                        keys.job_gates,
                    )
                ),
                *catalog,
                ("session_prefix", "", "write"),
            ]
        else:
            may = "read" if self.kind == VIEWER else "write"
            grants = [
                ("key", keys.current_version, may),
                *(("key_prefix", folder, may) for folder in (*reports, *gates, keys.upgrade)),
                *catalog,
            ]
            if self.kind == CONTROLLER:
                # It runs the job that is there: pause, abort, retry. It can't write another one.
                grants.append(("key_prefix", keys.jobs, "read"))
            if self.kind != VIEWER:
                grants.append(("session_prefix", "", "write"))
        return "".join(f'{what} {_quoted(name)} {{\n  policy = "{policy}"\n}}\n' for what, name, policy in grants)


def _letters(text: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "_" for c in text)


def _quoted(name: str) -> str:
    """Return a name as a quoted string of the ACL language."""
    if "${" in name:
        raise UpgradeError(
            "bad_name",
            f"{name!r} contains '${{', which starts an expression in Consul's ACL language. Rename the host, or set another kv_prefix.",
        )
    return json.dumps(name, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class GrantedToken:
    """A policy and its token.

    :param secret: the token itself; empty in check mode if there is none yet.
    """

    policy: str
    accessor: str = ""
    secret: str = ""
    changes: tuple[Change, ...] = ()

    def __repr__(self) -> str:
        """Return its text without the secret."""
        return f"Granted(policy={self.policy!r}, accessor={self.accessor!r})"


def grant(store: Store, part: TokenKind, *, dry: bool = False) -> GrantedToken:
    """Create or update the policy of a kind, create its token if there is none, and return both.

    :raises UpgradeError: ``bad_name``, ``foreign_policy``, ``denied``, or what :meth:`ConsulClient.read` raises.
    """
    rules, name, description = part.rules(store.keys), part.policy(store.keys), part.description(store.keys)
    before = _policy(store, part)
    changes = []
    identifier = before["ID"] if before is not None else ""
    if before is None or before["Rules"] != rules:
        changes.append(Change(f"policy {name}", before["Rules"] if before is not None else None, rules))
        if not dry:
            facts = {"Name": name, "Description": description, "Rules": rules}
            what = f"policy/{identifier}" if identifier else "policy"
            identifier = store.client.write_acl(what, {**facts, **({"ID": identifier} if identifier else {})})["ID"]
    token = _token(store, description, identifier) if before is not None else None
    if token is None:
        changes.append(Change(f"token of {name}", None, "one"))
        if not dry:
            token = store.client.write_acl("token", {"Description": description, "Policies": [{"ID": identifier}]})
    if token is None:
        return GrantedToken(name, changes=tuple(changes))
    if token["SecretID"] == _HIDDEN:
        raise UpgradeError(
            "denied",
            f"Policy {name} has a token already, and Consul at {store.settings.url} hides its secret from the token in use. "
            'Set token (or CONSUL_HTTP_TOKEN_FILE, else CONSUL_HTTP_TOKEN) to one whose policy has acl = "write".',
        )
    return GrantedToken(name, token["AccessorID"], token["SecretID"], tuple(changes))


def revoke(store: Store, part: TokenKind, *, dry: bool = False) -> GrantedToken:
    """Delete the policy of a kind and its token, and return what was deleted.

    :raises UpgradeError: ``bad_name``, ``foreign_policy``, or what :meth:`ConsulClient.read` raises.
    """
    name = part.policy(store.keys)
    before = _policy(store, part)
    if before is None:
        return GrantedToken(name)
    changes = [Change(f"policy {name}", before["Rules"], None)]
    token = _token(store, part.description(store.keys), before["ID"])
    if token is not None:
        changes.append(Change(f"token of {name}", "one", None))
    if not dry:
        if token is not None:
            store.client.delete_acl(f"token/{token['AccessorID']}")
        store.client.delete_acl(f"policy/{before['ID']}")
    return GrantedToken(name, changes=tuple(changes))


def _policy(store: Store, part: TokenKind) -> dict[str, Any] | None:
    name, description = part.policy(store.keys), part.description(store.keys)
    found = store.client.policy(name)
    if found is not None and found["Description"] != description:
        raise UpgradeError(
            "foreign_policy",
            f"Consul has a policy {name} already, with the description {found['Description']!r} instead of {description!r}. It is "
            "not changed. Rename that policy, or give another name.",
        )
    return found


def _token(store: Store, description: str, policy: str) -> dict[str, Any] | None:
    for one in store.client.read_acl("tokens", policy=policy):
        if one["Description"] == description:
            found: dict[str, Any] = store.client.read_acl(f"token/{one['AccessorID']}")
            return found
    return None
