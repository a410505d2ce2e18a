# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The gates under ``config_state/enable_puppet``: what a value means, and which gate decides for a host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from .._common.errors import UpgradeError
from .._common.sanitize import truncated_repr, truncated_text

OPEN = "True"
CLOSED = "False"

_BOOLEANS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class GateValue:
    """The stored value of one gate.

    :param key: the Consul key, for messages.
    :param text: the value as text, or None if the bytes are not UTF-8.
    :param at: when a planner set it (unix seconds), 0 if something else did.
    :param index: the key's ModifyIndex in Consul.
    """

    key: str
    text: str | None
    at: int = field(default=0, compare=False)
    index: int = field(default=0, compare=False)

    @property
    def is_true(self) -> bool:
        """Whether the value is ``True``, in any case."""
        return _BOOLEANS.get((self.text or "").strip().lower(), False)

    def display_text(self) -> str:
        """Return the value for messages, truncated."""
        return truncated_text((self.text or "").strip())

    def is_open(self, current_version: str | None) -> bool:
        """Return whether the value opens the gate.

        ``True`` and ``False`` count in any case, because python-jiocloud wrote both Python's and JSON's. A version opens the
        gate while it equals ``current_version``.

        :raises UpgradeError: ``unreadable_gate`` for any other value.
        """
        text = (self.text or "").strip()
        boolean = _BOOLEANS.get(text.lower())
        if boolean is not None:
            return boolean
        if text and text == current_version:
            return True
        if looks_like_version(text):
            return False
        held = "bytes that are not UTF-8 text" if self.text is None else truncated_repr(self.text)
        raise UpgradeError(
            "unreadable_gate",
            f"The gate {self.key} holds {held}, which is neither True, False nor a version. "
            "Set it with consul_enable_puppet, or delete the key.",
            key=self.key,
        )

    def was_closed_by_hand(self, current_version: str | None) -> bool:
        """Return whether the gate is closed and was not set by a planner. False for a gate that can't be read."""
        try:
            return not self.at and not self.is_open(current_version)
        except UpgradeError:
            return False

    def is_pause(self, current_version: str | None) -> bool:
        """Return whether a gate of the legacy layout is an operator's pause.

        python-jiocloud opens a host only if both this key and the rollout's gates are open, so any value but an open one is a
        pause. A value that a planner wrote is a copy of a gate, for nodes that read only this key, and no pause.
        """
        try:
            return not self.at and not self.is_open(current_version)
        except UpgradeError:
            return not self.at


def looks_like_version(text: str) -> bool:
    """Return whether a gate value that is not the current version may be another version.

    It must have a digit, as in ``2.10`` and ``v673``, so that a typo such as ``Flase`` is not taken for a version.
    """
    return text.isprintable() and any(c.isdigit() for c in text) and text[0] not in "{[\"'"


def gate_text(value: object, current_version: str | None) -> str:
    """Return the text to store in a gate.

    :param value: a boolean, True or False in any case, or a version.
    :raises UpgradeError: ``bad_gate_value``.
    """
    text = str(value).strip()
    boolean = _BOOLEANS.get(text.lower())
    if boolean is not None:
        return OPEN if boolean else CLOSED
    if text and (text == current_version or looks_like_version(text)):
        return text
    raise UpgradeError(
        "bad_gate_value",
        f"value: {truncated_repr(value)} is neither true, false nor a version (a version has a digit in it, or is the current one).",
    )


@dataclass(frozen=True, slots=True)
class GateAnswer:
    """The gate that decides for a host, and its answer.

    :param is_open: None if no gate is set.
    :param scope: host, role or global; None if no gate is set.
    :param at: when a planner set it (unix seconds), 0 if something else did.
    :param index: the key's ModifyIndex in Consul.
    """

    is_open: bool | None
    scope: str | None = None
    key: str | None = None
    value: str | None = None
    at: int = field(default=0, compare=False)
    index: int = field(default=0, compare=False)


NOTHING_SET = GateAnswer(None)


@dataclass(frozen=True, slots=True)
class Gates:
    """All gates of one layout."""

    everywhere: GateValue | None = None
    roles: Mapping[str, GateValue] = field(default_factory=dict)
    hosts: Mapping[str, GateValue] = field(default_factory=dict)

    def answer(self, host: str, role: str | None, current_version: str | None) -> GateAnswer:
        """Return the answer of the first gate that is set: that of the host, then that of the role, then the global one.

        :raises UpgradeError: ``unreadable_gate`` if that gate can't be read.
        """
        for scope, gate in (
            ("host", self.hosts.get(host)),
            ("role", self.roles.get(role) if role is not None else None),
            ("global", self.everywhere),
        ):
            if gate is not None:
                return GateAnswer(
                    gate.is_open(current_version), scope, gate.key, gate.display_text(), gate.at, gate.index
                )
        return NOTHING_SET

    def values(self) -> Iterator[GateValue]:
        """Yield all gates: the global one, those of roles, those of hosts."""
        yield from (self.everywhere,) if self.everywhere is not None else ()
        yield from self.roles.values()
        yield from self.hosts.values()

    def at(self, scope: str, name: str | None) -> GateValue | None:
        """Return one gate, None if it is not set."""
        if name is None:
            return self.everywhere
        return (self.roles if scope == "role" else self.hosts).get(name)

    def paused(self, current_version: str | None) -> Iterator[tuple[str, str | None, GateValue]]:
        """Yield scope, name and value of each pause. Only for gates of the legacy layout."""
        named = (("role", self.roles), ("host", self.hosts))
        places = [(scope, name, gate) for scope, found in named for name, gate in found.items()]
        for scope, name, gate in ([("global", None, self.everywhere)] if self.everywhere is not None else []) + places:
            if gate.is_pause(current_version):
                yield scope, name, gate

    def unreadable(self, current_version: str | None) -> list[UpgradeError]:
        """Return an error for every gate that can't be read."""
        errors = []
        for gate in self.values():
            try:
                gate.is_open(current_version)
            except UpgradeError as error:
                errors.append(error)
        return errors
