# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The page itself."""

from __future__ import annotations

from collections.abc import Iterable

from devkit.sources import trees

from . import plugins, tasks
from .index import Index
from .shapes import OPEN, merged

_BRAKES = "errors.md#what-keeps-a-rollout-from-opening"

_HEAD = f"""# Failures, by their texts

Every message that a failure of the collection can have. Look for words of yours that are neither a name nor a number: what differs from
call to call is left open here, as {OPEN}. What is above a message, or the sentence itself, leads to the way out. Of rules from a file, the
message ends with its name in brackets.

This page is written by `make messages` from the sources, and a test compares it with them.

## With a code

Modules return it as `failure.code`. Each leads to its section in [errors.md](errors.md), which tells what to do.
"""

_OF_BRAKES = """## While nothing opens

Told as `brake` with its code, which leads to what ends it. `aborted` and `budget_spent` end a wait too, as failures; what is left of the fleet
is told behind it then.
"""

_OF_ANSIBLE = """## Without a code

Lookups, filters and the inventory say what is above, some with their name in front of it, and show no code. Besides, there is:
"""

_OF_TASKS = """## Of tasks

Said by a task of a playbook or of a service's role, and by the live view and the report with it. The sentence says what to do; a host that failed is
tried again as [operating.md](operating.md) tells.
"""

_WITHIN = """## Within others

Why a value was not taken. It stands at the end of another message or in brackets, which names the key or the file.
"""


def page() -> str:
    """Return the page as Markdown."""
    index = Index(trees())
    by_code = _grouped(plugins.coded(index))
    brakes = _grouped((code, text) for code, text, _passes in plugins.brakes(index))
    by_file = _grouped((path.as_posix(), text) for path, text in tasks.found())
    coded = [f"### [`{code}`](errors.md#{code})\n\n{_listed(by_code[code])}" for code in sorted(by_code)]
    of_brakes = [f"### [`{code}`]({_BRAKES})\n\n{_listed(brakes[code])}" for code in sorted(brakes)]
    of_tasks = [f"### `{file}`\n\n{_listed(by_file[file])}" for file in sorted(by_file)]
    plain = _listed(set(plugins.plain(index)))
    parts = [
        _HEAD,
        *coded,
        _OF_BRAKES,
        *of_brakes,
        _OF_ANSIBLE,
        plain,
        _OF_TASKS,
        *of_tasks,
        _WITHIN,
        _listed(set(plugins.reasons(index))),
    ]
    return "\n".join(parts)


def _grouped(found: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    groups: dict[str, set[str]] = {}
    for name, text in found:
        groups.setdefault(name, set()).add(text)
    return groups


def _listed(messages: Iterable[str]) -> str:
    return "".join(f"- {_code(text)}\n" for text in merged(messages))


def _code(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"
