# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Consul client: all requests of the collection, with values or an :class:`UpgradeError` as results."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from .._common import runtime
from .._common.errors import UpgradeError
from .._common.sanitize import sanitize
from .answers import (
    Shape,
    are_asked_for,
    are_errors,
    are_results,
    are_written,
    is_entry,
    list_of,
    mapping_of,
    names_below,
    with_texts,
)
from .errors import Conflict, SessionEnded, Unreachable
from .settings import Settings
from .transport import Reply, Transport

T = TypeVar("T")
Operation = dict[str, Any]

# Consul 1.8 refuses transactions of more than 64 operations; 1.13 and later take 128.
MOST_OPERATIONS = 64

# Every read is consistent. A server that replays its log after a restart answers default reads with old values: a closed gate could
# be missing, which means open, and the version could be an old one.
_CONSISTENT = (("consistent", "1"),)

# With this header, Consul 1.11 and later say that the answer lacks what the token may not read.
_FILTERED = "X-Consul-Results-Filtered-By-ACLs"

# Parts of Consul's errors for a transaction whose checks failed.
_CONFLICTS = ("stale", "index", "exist", "lock is already held", "lock isn't held", "failed session check")
_SESSION_ENDED = "invalid session"

# How many characters of an error answer go into a message.
_MOST_PRINTED = 300


# From the best to the worst; empty is for a check that has no status yet.
_BADNESS = ("", "passing", "warning", "critical", "maintenance")


def _badness(status: str) -> int:
    # Consul accepts any text as a status; unknown ones count as the worst.
    return _BADNESS.index(status) if status in _BADNESS else len(_BADNESS)


# The fields of a check and of a token that are used here.
_IS_CHECK = with_texts("Node", "CheckID", "Name", "Status")
_IS_TOKEN = with_texts("AccessorID", "SecretID", "Description")
# Consul sends this header with every answer on keys, also on a missing key.
_INDEX = "X-Consul-Index"
# What Consul says with 401 and 403, source: acl/errors.go and agent/http.go. Other servers have other words.
_UNKNOWN_TO_ACL = "ACL not found"
_DENIALS = (_UNKNOWN_TO_ACL, "Permission denied")
_SETTINGS = ("ACL support disabled", "Endpoint is blocked by agent configuration")
# The other codes below 500 with which Consul refuses a request.
_REFUSALS = (400, 405, 413)
_TOO_LARGE = (
    " This write changed nothing. Each write of a planner contains the rules and the names of the hosts of a job under way or, in a rollback, of broken "
    "hosts: name roles or groups in place of hosts, or raise limits.txn_max_req_len in the configuration of Consul's agents. Then run the same command again."
)


def _is_page(reply: Reply) -> bool:
    """Return whether the body is a web page, whatever the code: Consul's API has none."""
    return reply.body.lstrip()[:1] == "<"


class KVEntry(NamedTuple):
    """A key as it was read.

    :param flags: the number that its writer stored beside the value.
    :param session: the Consul session that has locked it; empty if none has.
    """

    key: str
    value: bytes
    modify_index: int
    flags: int = 0
    session: str = ""


class ConsulClient:
    """A connection to one agent. Not for use by several threads."""

    def __init__(self, settings: Settings) -> None:
        """Create the transport.

        :raises UpgradeError: ``missing_library``.
        """
        self.settings = settings
        self._transport = Transport(settings)
        self._send = self._transport.send

    def close(self) -> None:
        """Close the idle connections. Consul accepts 200 from one address."""
        self._transport.close()

    @property
    def requests(self) -> int:
        """How many requests were sent."""
        return self._transport.requests

    def read(self, prefixes: Iterable[str], known: Iterable[str] = ()) -> list[KVEntry]:
        """Return all entries under the prefixes from one atomic read: one request.

        :param known: single keys that must exist, read in the same request.
        :raises Conflict: if one of these does not exist.
        :raises UpgradeError: ``unreachable``, ``denied``, ``tls``, ``consul_error``.
        """
        single = list(known)
        operations = [{"KV": {"Verb": "get-tree", "Key": prefix}} for prefix in prefixes]
        operations += [{"KV": {"Verb": "get", "Key": key}} for key in single]
        # Consul leaves out what the token may not read. That is no outage.
        found = self._entries(self._retrying(lambda: self._transact_reading(operations)))
        for key in sorted({*single} - {one.key for one in found}):
            if self.get(key) is not None:
                raise self._not_consul(f"it left out {key}, which it has")
            raise Conflict("conflict", f"{key} was deleted while it was read.", key=key)
        return found

    def read_known(self, keys: Sequence[str]) -> list[KVEntry]:
        """Return the entries of at most 64 keys that must exist: one request.

        :raises Conflict: if one does not exist.
        """
        return self.read((), keys)

    def read_visible(self, keys: Sequence[str]) -> list[KVEntry]:
        """Return the entries of at most 64 keys that must exist, without those that the token may not read: one request.

        :raises Conflict: if one does not exist.
        """
        operations = [{"KV": {"Verb": "get", "Key": key}} for key in keys]
        return self._entries(self._retrying(lambda: self._transact_reading(operations)))

    def get(self, key: str) -> KVEntry | None:
        """Return one entry, None if the key does not exist. Unlike in :meth:`read`, a missing permission is an error."""

        def ask() -> KVEntry | None:
            reply = self._send("get", f"/v1/kv/{key}", _CONSISTENT)
            if self._is_nothing(reply):
                return None
            found = self._json(
                self._checked(reply), lambda found: isinstance(found, list) and len(found) == 1 and is_entry(found[0])
            )
            return self._entries(found)[0]

        return self._retrying(ask)

    def folders(self, prefix: str) -> list[str]:
        """Return the names directly below a prefix, without the prefix; folders end with a slash."""
        keys = self._retrying(lambda: self._keys(prefix, "/")[0])
        return [key[len(prefix) :] for key in keys if key != prefix]

    def names(self, prefix: str) -> list[str]:
        """Return all keys below a prefix, without the prefix."""
        return [key[len(prefix) :] for key in self.keys(prefix)]

    def keys(self, prefix: str) -> list[str]:
        """Return all keys below a prefix."""
        return self._retrying(lambda: self._keys(prefix, None)[0])

    def keys_below(self, prefix: str, separator: str | None = "/") -> tuple[list[str], int]:
        """Return the keys below a prefix, and the highest index at which one was set or deleted: one request.

        If there is none, and none was deleted lately, the index is that of all keys.

        :param separator: where keys are cut off; None for whole keys.
        """
        return self._retrying(lambda: self._keys(prefix, separator))

    def nodes(self) -> list[dict[str, Any]]:
        """Return the nodes of the catalog: one request.

        Consul leaves out nodes that the token may not read. Consul 1.11 and later say so if the request has a token. Otherwise
        it is noticed only when no node is left, because a catalog has at least the node that answers.

        :raises UpgradeError: ``denied`` if nodes are known to be hidden, else what :meth:`read` raises.
        """
        nodes, whole = self._list("/v1/catalog/nodes", with_texts("Node"))
        if not nodes or not whole:
            raise self._hidden()
        return nodes

    def health(self, check: str) -> dict[str, str]:
        """Return node -> status (passing, warning, critical) of one check of nodes, such as ``serfHealth``: one request.

        Nodes whose check the token may not read are missing. Whether there are such nodes is not known: the header that Consul
        sends for hidden checks also stands for other checks, such as those of services.

        :raises UpgradeError: what :meth:`read` raises.
        """
        found, _whole = self._list("/v1/health/state/any", _IS_CHECK, (("filter", f'CheckID == "{check}"'),))
        return {one["Node"]: one["Status"] for one in found if one["CheckID"] == check}

    def statuses(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """Return node -> check -> the worst of its statuses, for checks of nodes and of services: one request.

        A check is found by its ID or its name. Checks that the token may not read are missing, so they do not count as passing.

        :raises UpgradeError: what :meth:`read` raises.
        """
        requested = set(names)
        # Without ASCII escapes: Consul does not read surrogate pairs.
        quoted = [json.dumps(name, ensure_ascii=False) for name in sorted(requested)]
        terms = " or ".join(f"CheckID == {name} or Name == {name}" for name in quoted)
        found, _whole = self._list("/v1/health/state/any", _IS_CHECK, (("filter", terms),))
        statuses: dict[str, dict[str, str]] = {}
        for one in found:
            of_node = statuses.setdefault(one["Node"], {})
            for name in requested & {one["CheckID"], one["Name"]}:
                of_node[name] = max(of_node.get(name, ""), one["Status"], key=_badness)
        return statuses

    def checks(self) -> dict[str, dict[str, Any]]:
        """Return check ID -> check for the checks registered with the agent: one request.

        :raises UpgradeError: what :meth:`read` raises.
        """

        def ask() -> dict[str, dict[str, Any]]:
            found: dict[str, dict[str, Any]] = self._json(
                self._checked(self._send("get", "/v1/agent/checks")), mapping_of(lambda one: isinstance(one, dict))
            )
            return found

        return self._retrying(ask)

    def put_to_agent(self, what: str, facts: dict[str, Any], **params: str) -> None:
        """Send ``/v1/agent/<what>`` to the agent; only for what is safe to send twice, such as ``check/register``.

        :raises UpgradeError: what :meth:`read` raises.
        """
        self._retrying(lambda: self._checked(self._send("put", f"/v1/agent/{what}", params.items(), json.dumps(facts))))

    def wait_for_change_below(self, prefix: str, index: int, seconds: float) -> tuple[int, bool]:
        """Wait until the index of a prefix is above ``index``, at most for ``seconds``, and return the index.

        It is a blocking query with a small answer: names up to the first slash, no values.

        :returns: the index, and whether there is any key below the prefix. If there is none and none was removed recently,
            Consul's index is that of all keys, so a write to any key ends the wait.
        """
        params = (("index", str(max(1, index))), ("wait", f"{max(1, int(seconds * 1000))}ms"))
        names, found = self._keys(prefix, "/", params, seconds)
        return found, bool(names)

    def read_acl(self, what: str, **params: str) -> Any:
        """Return the answer of ``/v1/acl/<what>``.

        :raises UpgradeError: what :meth:`read` raises.
        """
        return self._retrying(
            lambda: self._json(
                self._checked(self._send("get", f"/v1/acl/{what}", (*_CONSISTENT, *params.items()))),
                list_of(with_texts("AccessorID", "Description")) if what == "tokens" else _IS_TOKEN,
            )
        )

    def policy(self, name: str) -> dict[str, Any] | None:
        """Return the policy with a name, None if there is none: one request, two if there is none.

        :raises UpgradeError: what :meth:`read` raises.
        """

        def ask() -> dict[str, Any] | None:
            reply = self._send("get", f"/v1/acl/policy/name/{name}", _CONSISTENT)
            if (reply.code == 404 and not _is_page(reply)) or _UNKNOWN_TO_ACL in reply.body:
                return None
            found: dict[str, Any] | None = self._json(self._checked(reply), with_texts("ID", "Rules", "Description"))
            return found

        found = self._retrying(ask)
        if found is None:
            # Consul gives the same answer to an unknown token; this request raises the error for that.
            self.read_acl("token/self")
        return found

    def write_acl(self, what: str, facts: dict[str, Any]) -> dict[str, Any]:
        """Create or change a policy or a token, and return the stored one. The request is never repeated.

        :raises UpgradeError: what :meth:`write` raises.
        """
        found: dict[str, Any] = self._json(
            self._checked(self._send("put", f"/v1/acl/{what}", data=json.dumps(facts))),
            with_texts("ID") if what.startswith("policy") else _IS_TOKEN,
        )
        return found

    def delete_acl(self, what: str) -> None:
        """Delete a policy or a token.

        :raises UpgradeError: what :meth:`write` raises.
        """
        self._checked(self._send("delete", f"/v1/acl/{what}"))

    def open_session(self, name: str, seconds: int, *, keeps_keys: bool = False) -> str:
        """Create a session, and return its ID. When the session ends, Consul deletes the keys that it has locked.

        :param seconds: the TTL, at least 10. A session that is not renewed ends after one to two times that.
        The request is repeated, because a session whose ID was lost has locked nothing and expires.

        :param keeps_keys: unlock the keys instead of deleting them.
        :raises UpgradeError: what :meth:`read` raises.
        """
        behavior = "release" if keeps_keys else "delete"
        facts = {"Name": name, "TTL": f"{seconds}s", "Behavior": behavior, "LockDelay": "0s"}

        def ask() -> str:
            reply = self._checked(self._send("put", "/v1/session/create", data=json.dumps(facts)))
            session: str = self._json(reply, with_texts("ID"))["ID"]
            return session

        return self._retrying(ask)

    def renew_session(self, session: str) -> bool:
        """Renew a session; return False if it has already ended: one request, two if it has.

        A server that has just restarted says so of sessions that it has not read from its log yet. A consistent read waits until it has.
        """
        reply = self._send("put", f"/v1/session/renew/{session}")
        # Another server has other words for a 404.
        if reply.code == 404 and reply.body.startswith(f"Session id '{session}'"):
            return self.is_session(session)
        self._checked(reply)
        return True

    def is_session(self, session: str) -> bool:
        """Return whether a session exists: one request.

        :raises UpgradeError: what :meth:`read` raises.
        """
        return bool(self._list(f"/v1/session/info/{session}", with_texts("ID"))[0])

    def close_session(self, session: str) -> None:
        """End a session; what happens to the keys that it has locked is set by :meth:`open_session`."""
        self._checked(self._send("put", f"/v1/session/destroy/{session}"))

    def write(self, operations: Sequence[Operation]) -> list[dict[str, Any]]:
        """Apply a transaction, and return the entries that it set or read. The request is never repeated.

        :raises UpgradeError: ``conflict`` (:class:`Conflict`), ``unreachable`` (:class:`Unreachable`: the transaction may
            have been applied), ``denied``, ``tls``, ``consul_error``.
        """
        reply = self._transact(operations)
        if not are_written(operations, reply):
            raise self._not_consul("it answered with the result of another transaction")
        return reply

    def confirm(self, *checks: Operation) -> None:
        """Raise :class:`Conflict` unless all checks hold now: one consistent request. Consul answers a transaction of checks alone as a read.

        :raises UpgradeError: what :meth:`write` raises.
        """
        if not are_written(checks, self._transact(checks, _CONSISTENT)):
            raise self._not_consul("it answered with the result of another transaction")

    def settle(self, operations: Sequence[Operation]) -> None:
        """Apply a transaction; if the answer is lost, read the keys to find out whether it was applied.

        For callers that retry on conflict, and whose write is done as soon as the keys have its values.

        :raises Conflict: also if the answer is lost and the keys do not have the values.
        :raises UpgradeError: what :meth:`write` raises; ``unreachable`` if the keys can't be read either.
        """
        try:
            self.write(operations)
        except Unreachable as error:
            if not self._is_done(operations):
                raise Conflict("conflict", f"{error.message} It was not done.") from None

    def _is_done(self, operations: Sequence[Operation]) -> bool:
        """Return whether the keys have the values that a transaction gives them."""
        found = {entry.key: entry.value for entry in self.read([one["KV"]["Key"] for one in operations])}
        left: dict[str, bytes | None] = {}
        for one in operations:
            key, verb = one["KV"]["Key"], one["KV"]["Verb"]
            if verb == "delete-tree":
                left |= {name: None for name in found if name.startswith(key)}
            elif verb in ("delete", "delete-cas"):
                left[key] = None
            elif verb in ("set", "cas"):
                left[key] = base64.b64decode(one["KV"]["Value"])
        return all(found.get(key) == value for key, value in left.items())

    def _keys(
        self, prefix: str, separator: str | None, more: Iterable[tuple[str, str]] = (), seconds: float = 0
    ) -> tuple[list[str], int]:
        params = [("keys", ""), *_CONSISTENT, *more] + ([("separator", separator)] if separator else [])
        reply = self._send("get", f"/v1/kv/{prefix}", params, seconds=seconds)
        is_nothing = self._is_nothing(reply)
        names: list[str] = [] if is_nothing else self._json(self._checked(reply), names_below(prefix))
        index = str(reply.headers.get(_INDEX) or 0)
        if not re.fullmatch("[0-9]{1,20}", index):
            raise self._not_consul("its index is not a number")
        return names, int(index)

    def _is_nothing(self, reply: Reply) -> bool:
        """Return whether Consul answered that a key does not exist.

        A missing gate is open, so a 404 of another server must not count. Consul's own has an index.
        """
        if reply.code == 404 and _INDEX not in reply.headers:
            raise self._not_consul("it answered 404 without an index")
        return reply.code == 404

    def _list(
        self, path: str, shape: Shape, params: Iterable[tuple[str, str]] = ()
    ) -> tuple[list[dict[str, Any]], bool]:
        """Return a list, and whether it is complete as far as Consul says."""

        def ask() -> tuple[list[dict[str, Any]], bool]:
            reply = self._checked(self._send("get", path, (*_CONSISTENT, *params)))
            return self._json(reply, list_of(shape)) or [], str(reply.headers.get(_FILTERED)).lower() != "true"

        return self._retrying(ask)

    @staticmethod
    def _entries(found: Iterable[dict[str, Any]]) -> list[KVEntry]:
        return [
            KVEntry(
                one["Key"],
                base64.b64decode(one["Value"] or ""),
                one["ModifyIndex"],
                one.get("Flags") or 0,
                one.get("Session") or "",
            )
            for one in found
        ]

    def _transact(
        self, operations: Sequence[Operation], params: Iterable[tuple[str, str]] = ()
    ) -> list[dict[str, Any]]:
        reply = self._send("put", "/v1/txn", params, json.dumps(operations))
        if reply.code == 409:
            raise self._refused(operations, self._json(reply, are_errors(len(operations)))["Errors"])
        results = self._json(self._checked(reply), are_results)["Results"] or []
        return [result["KV"] for result in results if "KV" in result]

    def _transact_reading(self, operations: Sequence[Operation]) -> list[dict[str, Any]]:
        results = self._transact(operations, _CONSISTENT)
        if not are_asked_for(operations, results):
            raise self._not_consul("it answered with other keys than the request")
        return results

    def _refused(self, operations: Sequence[Operation], errors: Sequence[dict[str, Any]]) -> UpgradeError:
        first = errors[0]
        what, operation = sanitize(first["What"])[:_MOST_PRINTED], operations[first.get("OpIndex", 0)]["KV"]
        if "Permission denied" in what:
            return self._denied(f"{operation['Verb']} {operation['Key']}", what)
        if any(sign in what for sign in _CONFLICTS):
            changed = [
                operations[int(one.get("OpIndex", 0))]["KV"]["Key"]
                for one in errors
                if any(sign in str(one.get("What")) for sign in _CONFLICTS)
            ]
            return Conflict("conflict", f"Consul refused the transaction: {what}.", key=operation["Key"], keys=changed)
        kind = SessionEnded if _SESSION_ENDED in what else UpgradeError
        return kind(
            "consul_error",
            f"Consul at {self.settings.url} refused to {operation['Verb']} {operation['Key']}: {what}.",
        )

    def _checked(self, reply: Reply) -> Reply:
        # Proxies and other services answer with pages, which say nothing of the request.
        if _is_page(reply):
            raise self._not_consul(f"it answered with a web page, code {reply.code}")
        text = sanitize(reply.body.strip()[:_MOST_PRINTED])
        if reply.code == 200:
            return reply
        # Consul's own errors are plain text.
        if text[:1] in ("{", "["):
            raise self._not_consul(f"it answered {reply.code} with JSON, {text}")
        if any(sign in text for sign in _DENIALS):
            raise self._denied("answer", text)
        if reply.code == 429 or reply.code >= 500:
            raise self._transport.unreachable(f"it answered {reply.code}, {text or 'without a reason'}")
        if "HTTP request to an HTTPS server" in text:
            raise UpgradeError(
                "tls", f"Consul at {self.settings.url} speaks HTTPS: set scheme to https (or CONSUL_HTTP_SSL=true)."
            )
        if reply.code not in _REFUSALS and not any(sign in text for sign in _SETTINGS):
            raise self._not_consul(f"it answered {reply.code}, {text or 'without a reason'}")
        fix = _TOO_LARGE if reply.code == 413 else ""
        raise UpgradeError(
            "consul_error", f"Consul at {self.settings.url} answered {reply.code}: {text.rstrip('.')}.{fix}"
        )

    def _json(self, reply: Reply, shape: Shape) -> Any:
        try:
            found = json.loads(reply.body)
        except (ValueError, RecursionError) as error:
            raise self._not_consul("its answer is not JSON") from error
        if not shape(found):
            raise self._not_consul("its JSON has another shape")
        return found

    def _not_consul(self, why: str) -> Unreachable:
        # As a proxy may answer only for a while, reads are tried again; a write may or may not have been applied.
        return self._transport.unreachable(f"what answers there is not Consul's API ({why})")

    def _denied(self, what: str, text: str) -> UpgradeError:
        if _UNKNOWN_TO_ACL in text:
            message = (
                f"Consul at {self.settings.url} does not know the token that it was given (ACL not found). "
                "Set token (or CONSUL_HTTP_TOKEN_FILE, else CONSUL_HTTP_TOKEN) to one that exists."
            )
        else:
            why = "the token that it was given may not do that" if self.settings.token else "no token was given"
            message = (
                f"Consul at {self.settings.url} refused to {what}: permission denied; {why}. "
                "Set token (or CONSUL_HTTP_TOKEN_FILE, else CONSUL_HTTP_TOKEN) to one whose policy allows it."
            )
        return UpgradeError("denied", message)

    def _hidden(self) -> UpgradeError:
        whom = "the token that it was given" if self.settings.token else "requests without a token"
        return UpgradeError(
            "denied",
            f"Consul at {self.settings.url} hides nodes of its catalog from {whom}, and a host that is hidden would be "
            "missing from the fleet. Set token (or CONSUL_HTTP_TOKEN_FILE, else CONSUL_HTTP_TOKEN) to one whose policy has "
            'node_prefix "" { policy = "read" }.',
        )

    def _retrying(self, ask: Callable[[], T]) -> T:
        # Only for requests that are safe to repeat. A new leader or a restarted agent answers within seconds.
        until = runtime.monotonic() + self.settings.timeout
        pause = 0.05
        while True:
            try:
                return ask()
            except Unreachable:
                if runtime.monotonic() + pause > until:
                    raise
                runtime.sleep(pause * runtime.uniform(0.5, 1))
                pause = min(pause * 2, 1.0)
