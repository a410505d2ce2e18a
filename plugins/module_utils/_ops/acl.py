# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Policies and tokens for those who take part in a rollout, each with as little as its part needs.

Consul's rules are those of its documentation of ACL policies: ``key`` and ``key_prefix`` decide for keys, and the longest
prefix wins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .._model.errors import UpgradeError
from .._model.names import check_name
from .._store.keys import Keys
from .._store.operations import Change
from .._store.store import Store

# What Consul tells those who may read tokens and not write them.
_HIDDEN = "<hidden>"

CONTROLLER, NODE, VIEWER = KINDS = ("controller", "node", "viewer")


@dataclass(frozen=True, slots=True)
class Part:
    """Somebody who takes part.

    :param kind: ``controller`` plans and drives, ``node`` asks for itself and reports on itself, ``viewer`` looks.
    :param name: of the host, for a node; for the others it tells several of them apart, and may be empty.
    :param publishes_health: whether a node may set checks of its own in Consul's catalog.
    """

    kind: str
    name: str = ""
    publishes_health: bool = True

    def __post_init__(self) -> None:
        """Refuse what can't be a part of a key.

        :raises UpgradeError: ``bad_name``.
        """
        if self.kind == NODE or self.name:
            check_name("host" if self.kind == NODE else "part", self.name, "name")

    @property
    def policy(self) -> str:
        """The name of its policy, in the letters that Consul takes."""
        letters = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "_" for c in self.name)
        return f"convoy-upgrade-{self.kind}" + (f"-{letters}" if letters else "")

    @property
    def description(self) -> str:
        """What tells its policy and its token from all others."""
        return f"convoy.upgrade: {self.kind}" + (f" {self.name}" if self.name else "")

    def rules(self, keys: Keys) -> str:
        """Return what it may do, in Consul's language."""
        if self.kind == VIEWER:
            grants = [("key_prefix", keys.prefix, "read"), ("node_prefix", "", "read"), ("service_prefix", "", "read")]
        elif self.kind == CONTROLLER:
            grants = [
                ("key", keys.current_version, "write"),
                ("key_prefix", keys.reports, "write"),
                ("key_prefix", keys.gates, "write"),
                ("key_prefix", keys.upgrade, "write"),
                ("session_prefix", "", "write"),
                ("node_prefix", "", "read"),
                ("service_prefix", "", "read"),
            ]
        else:
            grants = [
                ("key", keys.current_version, "read"),
                ("key_prefix", keys.gates, "read"),
                ("key_prefix", keys.holds, "read"),
                ("key", keys.record(self.name), "write"),
            ]
            if self.publishes_health:
                grants.append(("node", self.name, "write"))
        return "".join(f'{what} "{name}" {{\n  policy = "{policy}"\n}}\n' for what, name, policy in grants)


@dataclass(frozen=True, slots=True)
class Granted:
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


def grant(store: Store, part: Part, *, dry: bool = False) -> Granted:
    """Make sure that there are the policy and one token of a part.

    :raises UpgradeError: ``bad_name``, ``foreign_policy``, ``denied``, or what :meth:`ConsulClient.read` raises.
    """
    rules = part.rules(store.keys)
    before = _policy(store, part)
    changes = []
    identifier = before["ID"] if before is not None else ""
    if before is None or before["Rules"] != rules:
        changes.append(Change(f"policy {part.policy}", before["Rules"] if before is not None else None, rules))
        if not dry:
            facts = {"Name": part.policy, "Description": part.description, "Rules": rules}
            what = f"policy/{identifier}" if identifier else "policy"
            identifier = store.client.write_acl(what, {**facts, **({"ID": identifier} if identifier else {})})["ID"]
    token = _token(store, part, identifier) if before is not None else None
    if token is None:
        changes.append(Change(f"token of {part.policy}", None, "one"))
        if not dry:
            token = store.client.write_acl("token", {"Description": part.description, "Policies": [{"ID": identifier}]})
    if token is None:
        return Granted(part.policy, changes=tuple(changes))
    if token["SecretID"] == _HIDDEN:
        raise UpgradeError(
            "denied",
            f"There is a token of {part.policy} already, and Consul at {store.settings.url} hides its secret from the token "
            'that it was given. Set token (or CONSUL_HTTP_TOKEN) to one whose policy has acl = "write".',
        )
    return Granted(part.policy, token["AccessorID"], token["SecretID"], tuple(changes))


def revoke(store: Store, part: Part, *, dry: bool = False) -> Granted:
    """Delete the policy of a part and its token.

    :raises UpgradeError: ``bad_name``, ``foreign_policy``, or what :meth:`ConsulClient.read` raises.
    """
    before = _policy(store, part)
    if before is None:
        return Granted(part.policy)
    changes = [Change(f"policy {part.policy}", before["Rules"], None)]
    token = _token(store, part, before["ID"])
    if token is not None:
        changes.append(Change(f"token of {part.policy}", "one", None))
    if not dry:
        if token is not None:
            store.client.delete_acl(f"token/{token['AccessorID']}")
        store.client.delete_acl(f"policy/{before['ID']}")
    return Granted(part.policy, changes=tuple(changes))


def _policy(store: Store, part: Part) -> dict[str, Any] | None:
    for one in store.client.read_acl("policies"):
        if one["Name"] == part.policy:
            found: dict[str, Any] = store.client.read_acl(f"policy/{one['ID']}")
            if found["Description"] != part.description:
                raise UpgradeError(
                    "foreign_policy",
                    f"Consul has a policy {part.policy} already, for {found['Description'] or 'something else'!r} and not for "
                    f"{part.description!r}. It is left as it is; rename it, or give another name.",
                )
            return found
    return None


def _token(store: Store, part: Part, policy: str) -> dict[str, Any] | None:
    for one in store.client.read_acl("tokens", policy=policy):
        if one["Description"] == part.description:
            found: dict[str, Any] = store.client.read_acl(f"token/{one['AccessorID']}")
            return found
    return None
