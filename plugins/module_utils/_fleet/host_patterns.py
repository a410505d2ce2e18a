# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Host patterns, as in Ansible's ``--limit``, for the hosts, roles and groups of a fleet."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase, translate

from .._common.errors import UpgradeError
from .._common.names import did_you_mean, in_order, listing
from .._common.sanitize import truncated_repr

# A colon outside of brackets separates patterns; within them, it separates the ends of a range.
_COLON = re.compile(r":(?![^\[]*\])")
_SUBSCRIPT = re.compile(r"(?P<name>.+)\[(?:(?P<at>-?[0-9]{1,9})|(?P<first>[0-9]{1,9})[:-](?P<last>[0-9]{0,9}))\]")
_ALL = ("all", "*")


def select_hosts(patterns: Iterable[str], members: Mapping[str, str], group: Mapping[str, str]) -> frozenset[str]:
    """Return the hosts that patterns select; none for no pattern.

    A pattern is the name of a host, role or group, a glob (``web*``), a regular expression for the beginning of a name (``~web[0-9]``)
    or a range of a role (``web[0:2]``). ``!pattern`` excludes hosts, and ``&pattern`` keeps only these. The source of the
    rules is "Patterns: targeting hosts and groups" in Ansible's documentation. Unlike there, each pattern has to fit a host, and
    none may be empty.

    :param patterns: each may hold several, separated by commas or colons.
    :param members: host -> role, in natural order.
    :param group: role -> its group, for roles that have one.
    :raises UpgradeError: ``unknown_limit`` for a pattern that is empty or fits no host, and if all patterns together leave none.
    """
    names = _names(members, group)
    parts = [part for text in patterns for part in _split(text, names)]
    if not parts:
        return frozenset()
    chosen = [part for part in parts if part[0] not in "!&"]
    found = set(members) if not chosen else set[str]()
    for part in chosen:
        found |= _fitting(part, names, members)
    for part in parts:
        if part[0] == "&":
            found &= _fitting(part[1:], names, members)
    for part in parts:
        if part[0] == "!":
            found -= _fitting(part[1:], names, members)
    if not found:
        raise UpgradeError("unknown_limit", f"limit: {truncated_repr(','.join(parts))} leaves no host of this fleet.")
    return frozenset(found)


def pattern_without(host: str) -> str:
    """Return the host pattern that excludes a host."""
    # In brackets, a colon separates no patterns.
    return "!~" + re.escape(host).replace(":", "[:]") + "$"


def excluded_by(pattern: str) -> str:
    """Return what a pattern with an exclamation mark excludes, for a sentence: for one of :func:`pattern_without` its host."""
    one = re.fullmatch(r"!~(.*)\$", pattern)
    return re.sub(r"\\(.)", r"\1", one[1].replace("[:]", ":")) if one else pattern[1:]


def select_roles(patterns: Iterable[str], members: Mapping[str, str], group: Mapping[str, str]) -> frozenset[str]:
    """Return the roles that patterns select by the name of the role or its group: hosts that join such a role later are meant too.

    A role of which patterns name each present host is not among them.

    :raises UpgradeError: what :func:`select_hosts` raises.
    """
    texts = list(patterns)
    hosts = select_hosts(texts, members, group)
    parts = [part for text in texts for part in _split(text, _names(members, group))]
    chosen = [part for part in parts if part[0] not in "!&"]
    kept = [part[1:] for part in parts if part[0] == "&"]
    of_roles = {name: found for name, found in _role_names(members, group).items() if name not in members}
    named = set(members) if not chosen else {host for part in chosen for host in _named(part, of_roles, members)}
    for part in kept:
        named &= _named(part, of_roles, members)
    left_out = {role for host, role in members.items() if host not in named or host not in hosts}
    return frozenset(members.values()) - left_out


def with_inventory_groups(
    patterns: Iterable[str], groups: Mapping[str, Sequence[str]], members: Mapping[str, str]
) -> list[str]:
    """Return patterns that name hosts in place of groups of the inventory, which :func:`select_hosts` does not know.

    :param groups: group of the inventory -> its hosts. Hosts and roles hide groups with the same names.
    :param members: host -> role. Groups without any of these hosts stay unknown.
    :raises UpgradeError: ``unknown_limit`` for an empty pattern.
    """
    taken = {*members, *members.values(), *_ALL}
    own = {
        name: kept for name, hosts in groups.items() if name not in taken and (kept := [*filter(members.get, hosts)])
    }
    return [",".join(_with_hosts(part, own) for part in _split(text, {*taken, *own})) for text in patterns]


def _with_hosts(part: str, groups: Mapping[str, Sequence[str]]) -> str:
    """Return a pattern that also selects the hosts of the groups that it fits."""
    sign, name = (part[0], part[1:]) if part[0] in "!&" else ("", part)
    fitting = [] if name in _ALL else _fitting_names(name, groups)
    if not fitting:
        return part
    # Leading flags, such as (?i), have to stay there.
    flags = re.match(r"~((?:\(\?[aiLmsux]+\))+)", name)
    own = name[flags.end() :] if flags is not None else name[1:]
    # A glob or an expression may fit other names too, and a group of the rules may have the same name.
    found = (
        [re.escape(name) + "$"]
        if name in groups
        else [own if name[0] == "~" else translate(name)[len("(?s:") : -len(r")\Z")] + "$"]
    )
    # In brackets, a colon separates no patterns.
    found += dict.fromkeys(re.escape(host).replace(":", "[:]") + "$" for one in fitting for host in groups[one])
    return f"{sign}~{flags[1] if flags is not None else ''}({'|'.join(found)})"


def _named(pattern: str, of_roles: Mapping[str, list[str]], members: Mapping[str, str]) -> set[str]:
    """Return the hosts of the roles and groups that a pattern names; none for a range, which counts the present hosts."""
    is_range = not pattern.startswith("~") and pattern not in of_roles and _SUBSCRIPT.fullmatch(pattern)
    return set() if is_range else _hosts_of(pattern, of_roles, members)


def _role_names(members: Mapping[str, str], group: Mapping[str, str]) -> dict[str, list[str]]:
    """Return role or group -> its hosts."""
    found: dict[str, list[str]] = {}
    for host, role in members.items():
        for name in dict.fromkeys((role, group.get(role, role))):
            found.setdefault(name, []).append(host)
    return found


def _names(members: Mapping[str, str], group: Mapping[str, str]) -> dict[str, list[str]]:
    """Return role or group -> its hosts, and host -> itself. A host hides a role with the same name."""
    return {**_role_names(members, group), **{host: [host] for host in members}}


def _split(text: str, names: Collection[str]) -> list[str]:
    if text in names:
        return [text]
    parts = [part.strip() for part in (text.split(",") if "," in text else _COLON.split(text))]
    if not all(parts):
        # With an exclusion beside it, such as in "$HOSTS:!web1", all other hosts would be selected.
        raise UpgradeError(
            "unknown_limit",
            f"limit: {truncated_repr(text)} has an empty pattern. That usually means an unset variable. Name hosts, roles or groups.",
        )
    return parts


def _fitting(pattern: str, names: Mapping[str, list[str]], members: Mapping[str, str]) -> set[str]:
    subscript = None if pattern.startswith("~") or pattern in names else _SUBSCRIPT.fullmatch(pattern)
    if subscript is None:
        found = _hosts_of(pattern, names, members)
    else:
        hosts = in_order(_hosts_of(subscript["name"], names, members))
        if subscript["at"]:
            at = int(subscript["at"])
            found = {hosts[at]} if -len(hosts) <= at < len(hosts) else set()
        else:
            # Both ends belong to a range.
            found = set(hosts[int(subscript["first"]) : int(subscript["last"] or len(hosts)) + 1])
    if not found:
        raise _unknown(pattern, names, members)
    return found


def _hosts_of(pattern: str, names: Mapping[str, list[str]], members: Mapping[str, str]) -> set[str]:
    if pattern in names:
        return set(names[pattern])
    if pattern in _ALL:
        return set(members)
    return {host for name in _fitting_names(pattern, names) for host in names[name]}


def _fitting_names(pattern: str, names: Iterable[str]) -> list[str]:
    """Return the names that a glob or a regular expression fits."""
    if not pattern.startswith("~"):
        return [name for name in names if fnmatchcase(name, pattern)]
    try:
        expression = re.compile(pattern[1:])
    except re.error as error:
        raise UpgradeError(
            "unknown_limit", f"limit: {truncated_repr(pattern)} is not a regular expression: {error}."
        ) from error
    return [name for name in names if expression.match(name)]


def _unknown(pattern: str, names: Mapping[str, object], members: Mapping[str, str]) -> UpgradeError:
    return UpgradeError(
        "unknown_limit",
        f"limit: {truncated_repr(pattern)} fits no host, role or group of this fleet{did_you_mean(pattern, names) or '.'} "
        f"Its roles are {listing(in_order(set(members.values())), 10) or 'none'}.",
        name=pattern,
    )
