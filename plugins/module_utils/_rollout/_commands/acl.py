# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Policies and tokens for those who take part in a rollout, each with as little as its part needs.

Consul's rules are those of its documentation of ACL policies: ``key`` and ``key_prefix`` decide for keys, and the longest
prefix wins.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from ..._common.errors import UpgradeError
from ..._common.names import check_name
from ..._consul.operations import Change
from ..._state.keys import Keys
from ..._state.legacy_keys import LegacyKeys
from ..._state.store import Store

# The longest name of a policy that Consul takes.
_LONGEST = 128
# What Consul tells those who may read tokens and not write them.
_HIDDEN = "<hidden>"

CONTROLLER, NODE, VIEWER, MIGRATOR = KINDS = ("controller", "node", "viewer", "migrator")


@dataclass(frozen=True, slots=True)
class TokenKind:
    """Somebody who takes part.

    :param kind: ``controller`` plans and drives, ``node`` asks for itself and reports on itself, ``viewer`` looks,
        ``migrator`` brings the keys to another layout.
    :param name: of the host, for a node; for the others it tells several of them apart, and may be empty.
    :param publishes_health: whether a node may set checks of its own in Consul's catalog. With that it may also register and
        deregister its own node there, so it is for those who need it.
    """

    kind: str
    name: str = ""
    publishes_health: bool = False

    def __post_init__(self) -> None:
        """Refuse what can't be a part of a key.

        :raises UpgradeError: ``bad_name``.
        """
        if self.kind == NODE or self.name:
            check_name("host" if self.kind == NODE else "part", self.name, "name")

    def policy(self, keys: Keys) -> str:
        """Return the name of its policy, in the letters that Consul takes; fleets with a prefix have theirs in it."""
        fleet = f"{_letters(keys.prefix.strip('/'))}--" if keys.prefix else ""
        name = f"convoy-upgrade-{fleet}{self.kind}" + (f"-{_letters(self.name)}" if self.name else "")
        if len(name) <= _LONGEST:
            return name
        return f"{name[: _LONGEST - 13]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"

    def description(self, keys: Keys) -> str:
        """Return what tells its policy and its token from all others."""
        fleet = f" of the fleet under {keys.prefix}" if keys.prefix else ""
        return f"convoy.upgrade: {self.kind}" + (f" {self.name}" if self.name else "") + fleet

    def rules(self, keys: Keys) -> str:
        """Return what it may do, in Consul's language.

        :raises UpgradeError: ``bad_name`` for what can't be written in it.
        """
        # The catalog and its checks, as health.consul_checks and the inventory read them.
        catalog = [("node_prefix", "", "read"), ("service_prefix", "", "read")]
        old = LegacyKeys(keys.prefix)
        # Wherever a host's keys are, before, during and after a migration.
        gates, reports = (keys.gates, *old.gate_folders), (keys.reports, old.reports)
        if self.kind == NODE:
            grants = [
                *(("key", key, "read") for key in (keys.current_version, keys.schema)),
                *(("key_prefix", folder, "read") for folder in gates),
                ("key_prefix", keys.holds, "read"),
                ("key", keys.record(self.name), "write"),
            ]
            if self.publishes_health:
                grants.append(("node", self.name, "write"))
        elif self.kind == MIGRATOR:
            grants = [
                ("key", keys.current_version, "write"),
                *(("key_prefix", folder, "write") for folder in (*reports, *gates, keys.upgrade)),
                ("session_prefix", "", "write"),
            ]
        else:
            may = "write" if self.kind == CONTROLLER else "read"
            grants = [
                ("key", keys.current_version, may),
                *(("key_prefix", folder, may) for folder in (*reports, *gates, keys.upgrade)),
                *catalog,
            ]
            if self.kind == CONTROLLER:
                grants.append(("session_prefix", "", "write"))
        return "".join(f'{what} {_quoted(name)} {{\n  policy = "{policy}"\n}}\n' for what, name, policy in grants)


def _letters(text: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "_" for c in text)


def _quoted(name: str) -> str:
    """Return a name as it stands in rules."""
    if "${" in name:
        raise UpgradeError(
            "bad_name",
            f"{name!r} has '${{' in it, which begins a formula in the language of Consul's policies. Rename the host, or give "
            "another kv_prefix.",
        )
    return json.dumps(name, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class GrantedToken:
    """A policy and its token.

    :param secret: the token itself; empty in check mode where there is none yet.
    """

    policy: str
    accessor: str = ""
    secret: str = ""
    changes: tuple[Change, ...] = ()

    def __repr__(self) -> str:
        """Leave the secret out."""
        return f"Granted(policy={self.policy!r}, accessor={self.accessor!r})"


def grant(store: Store, part: TokenKind, *, dry: bool = False) -> GrantedToken:
    """Make sure that there are the policy and one token of a part.

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
            f"There is a token of {name} already, and Consul at {store.settings.url} hides its secret from the token "
            'that it was given. Set token (or CONSUL_HTTP_TOKEN) to one whose policy has acl = "write".',
        )
    return GrantedToken(name, token["AccessorID"], token["SecretID"], tuple(changes))


def revoke(store: Store, part: TokenKind, *, dry: bool = False) -> GrantedToken:
    """Delete the policy of a part and its token.

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
            f"Consul has a policy {name} already, for {found['Description'] or 'something else'!r} and not for "
            f"{description!r}. It is left as it is; rename it, or give another name.",
        )
    return found


def _token(store: Store, description: str, policy: str) -> dict[str, Any] | None:
    for one in store.client.read_acl("tokens", policy=policy):
        if one["Description"] == description:
            found: dict[str, Any] = store.client.read_acl(f"token/{one['AccessorID']}")
            return found
    return None
