# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decode and encode the key of a provider."""

from __future__ import annotations

import json

from .._common.clock import is_time
from .._common.errors import UpgradeError
from .._common.names import check_new_version, check_version
from .._common.sanitize import sanitize, truncate_middle, truncated_repr
from .._fleet.checkpoints import MOST_DONE
from .._fleet.providers import Provider
from .values import decode_data

_LONGEST_ERROR = 4200


def decode_provider(key: str, value: bytes) -> Provider:
    """Return a provider. One that can't be read has no version and an error, so nothing is begun on it."""
    try:
        data = decode_data(value)
        texts = {name: data.get(name, "") for name in ("version", "target", "host", "task_group", "error")}
        done, at = data.get("done", []), data.get("at", 0)
        if not all(isinstance(text, str) for text in texts.values()):
            raise ValueError(f"{truncated_repr(texts)} are not all texts")
        # The version may be unknown during an upgrade, but not without a target.
        if texts["version"] or not texts["target"]:
            check_version(texts["version"], "version")
        # Every target is that of a rollout. If it is older than the version, tasks get it as the version that they come from.
        if texts["target"]:
            check_new_version(texts["target"], "target")
        if not (isinstance(done, list) and all(isinstance(task_group, str) for task_group in done)):
            raise ValueError(f"done {truncated_repr(done)}")
        if sum(map(len, done)) > MOST_DONE:
            raise ValueError(f"done has more than {MOST_DONE} characters")
        if not is_time(at):
            raise ValueError(f"at {truncated_repr(at)}")
        error = truncate_middle(sanitize(texts["error"]), _LONGEST_ERROR)
        host, task_group = (truncate_middle(sanitize(texts[name])) for name in ("host", "task_group"))
        return Provider(texts["version"], texts["target"], host, task_group, tuple(map(sanitize, done)), error, at)
    except (ValueError, TypeError, AttributeError, UpgradeError) as error:
        why = truncate_middle(sanitize(error.message if isinstance(error, UpgradeError) else str(error)))
        fix = 'Write the version that it runs, such as {"version": "2.4"}'
        return Provider(
            error=f"{key} can't be read ({why}). {fix}, or delete the key and declare the version again.",
            readable=False,
        )


def encode_provider(provider: Provider) -> str:
    """Return a provider as it is stored."""
    facts = {**provider.plain(), "at": provider.at}
    del facts["state"]
    return json.dumps({name: value for name, value in facts.items() if value}, sort_keys=True)
