# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The map of hosts on the live page: a cell for each host, coloured by its state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...module_utils._host_states.state_names import FAILED, HELD, LOST, PENDING, UPGRADED, UPGRADING, state_text
from ...module_utils._planner.plan import HostView
from .charts import Swatch
from .host_details import LEFT_OUT, ROW, Part, shown_state

_CLASSES = {UPGRADED: "d", UPGRADING: "k", FAILED: "pf", LOST: "pf", HELD: "h", PENDING: "w"}
# Hosts that a job is not for are no part of it.
_OUTSIDE = "e"
# The size of a cell, with its gap.
_CELL = 10


def map_legend(*, of_job: bool, has_outside: bool) -> list[Swatch]:
    """Return the colours of the map, and of the bars of roles.

    :param has_outside: whether a job is not for some of the hosts.
    """
    texts = {_CLASSES[state]: state_text(state, of_job=of_job) for state in (UPGRADED, UPGRADING, HELD, PENDING)}
    texts[_CLASSES[FAILED]] = "failed or lost"
    kinds = ("d", "k", "pf", "h", "w")
    return [*(Swatch(kind, texts[kind]) for kind in kinds), *([Swatch(_OUTSIDE, LEFT_OUT)] if has_outside else [])]


def host_map(
    parts: Iterable[Part], hosts: Mapping[str, HostView], *, of_job: bool
) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return role -> its parts, each with a path of cells for each colour. Takes time linear in hosts.

    :param hosts: host -> view.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for part in parts:
        cells: dict[str, list[str]] = {}
        counts: dict[str, int] = {}
        for at, host in enumerate(part.hosts):
            view = hosts[host]
            text = shown_state(view, of_job=of_job)
            counts[text] = counts.get(text, 0) + 1
            x, y = at % ROW * _CELL + 1, at // ROW * _CELL + 1
            kind = _OUTSIDE if view.outside else _CLASSES[view.state]
            cells.setdefault(kind, []).append(f"M{x} {y}h9v9h-9z")
        found.setdefault(part.role, []).append(
            {
                "name": part.name,
                "title": part.title,
                "height": -(-len(part.hosts) // ROW) * _CELL + 1,
                "paths": [(kind, "".join(path)) for kind, path in cells.items()],
                "text": ", ".join(f"{count} {text}" for text, count in counts.items()),
            }
        )
    return [*found.items()]
