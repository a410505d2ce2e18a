# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An event source of Event-Driven Ansible: the events of a rollout."""

from __future__ import annotations

DOCUMENTATION = r"""
short_description: The events of a rollout, such as failures and awaited approvals
description:
  - Each event has the fields that C(docs/watching.md) lists, such as C(event.event) and C(event.version).
  - It reads Consul and writes nothing. A token of the kind C(viewer) is enough. Each source gets all events from its start on.
  - In texts, parentheses stand for braces, because Ansible evaluates them in an event.
  - It waits with blocking queries. If Consul is unreachable, it retries, and sends what it missed.
  - The Python library C(py-consul) must be installed where C(ansible-rulebook) runs.
options:
  host, port, scheme, token, validate_certs, ca_path, client_cert, client_key, datacenter, timeout, pass_limit, kv_prefix:
    description:
      - The connection to Consul, as for all modules of the collection. The defaults are those of Consul's own tools, such as C(CONSUL_HTTP_ADDR).
  fleet:
    description:
      - Maps hosts that never reported to their roles.
    type: dict
  events:
    description:
      - The events to send: C(begin), C(stage), C(pause), C(resume), C(failure), C(approval_needed), C(approved) or C(end). The default is all.
    type: list
    elements: str
"""

EXAMPLES = r"""
- name: React to a rollout
  hosts: localhost
  sources:
    - convoy.upgrade.rollout:
        host: consul.example.com
        events: [failure, approval_needed]
  rules:
    - name: Collect logs of failed hosts
      condition: event.event == "failure"
      action:
        run_playbook:
          name: collect_logs.yml
"""

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

# ansible-rulebook loads this file by itself, without Ansible's loader of collections. The folder above ansible_collections is where it is installed.
with contextlib.suppress(IndexError):
    sys.path.append(str(Path(__file__).absolute().parents[7]))

from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._common.sanitize import without_templates
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.errors import Unreachable
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import read_settings
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.watch import Watch
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.notifications import EVENTS
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.notifications import RolloutEvents
from ansible_collections.convoy.upgrade.plugins.module_utils._state.legacy_keys import LegacyKeys
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store

_CONNECTION = (
    *(
        "host",
        "port",
        "scheme",
        "token",
        "validate_certs",
        "ca_path",
        "client_cert",
        "client_key",
        "datacenter",
        "timeout",
    ),
    *("pass_limit", "kv_prefix"),
)
# The rollout is read at least this often, because deadlines end without a change in Consul, and at most so often (seconds).
_LONGEST_WAIT = 5.0
_LEAST_PAUSE = 0.5
_LOG = logging.getLogger(__name__)


def _checked(args: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the events to send.

    :raises UpgradeError: ``bad_options``.
    """
    known = (*_CONNECTION, "fleet", "events")
    # ansible-rulebook adds its own ones with capital letters or a prefix.
    unknown = [name for name in args if name not in known and not name.startswith(("eda_", "EDA_"))]
    if unknown:
        raise UpgradeError(
            "bad_options",
            f"{unknown[0]}: there is no such argument of convoy.upgrade.rollout. Known are {', '.join(known)}.",
        )
    events = args.get("events") or list(EVENTS)
    wrong = [one for one in events if one not in EVENTS] if isinstance(events, list) else [events]
    if wrong:
        raise UpgradeError("bad_options", f"events: {wrong[0]!r} is not one of {', '.join(EVENTS)}.")
    return tuple(events)


async def main(queue: asyncio.Queue[dict[str, Any]], args: dict[str, Any]) -> None:
    """Put the events of the rollout into the queue, until this is cancelled.

    :param args: the arguments of the source.
    :raises UpgradeError: for wrong arguments, and what the first read raises but ``unreachable``.
    """
    events = _checked(args)
    settings = read_settings(args.get, os.environ)
    store = Store(settings)
    feed = RolloutEvents(store, args.get("fleet"))
    keys = store.keys
    folders = (keys.upgrade, keys.reports, LegacyKeys(keys.prefix).reports, keys.gates, keys.current_version)
    watch = Watch(settings, folders)
    is_away = has_read = False
    try:
        while True:
            mark = watch.mark()
            try:
                found = await _in_thread(feed.read)
                is_away, has_read = False, True
            except UpgradeError as error:
                # Later, it may be a moment of a restore.
                if not (has_read or isinstance(error, Unreachable)):
                    raise
                found = []
                if not is_away:
                    _LOG.warning("%s It is tried again.", error.message)
                is_away = True
            for event in found:
                if event["event"] in events:
                    # The variable of Ansible that ansible-rulebook makes of it would be evaluated.
                    await queue.put(without_templates(event))
            await asyncio.sleep(_LEAST_PAUSE)
            await _in_thread(lambda mark=mark: watch.wait(mark, _LONGEST_WAIT))
    finally:
        watch.close()


async def _in_thread(act: Callable[[], Any]) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, act)
