# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fleets as JioCloud's own code left them in Consul, and migrators that are killed on the way.

The keys are those of python-jiocloud: ``update_own_info`` wrote ``str(time.time())`` of Python 2, ``trigger_update`` whatever
it was given, ``manage_config`` and ``enable_puppet`` the text of the command line, and ``DeploymentUpgrader`` booleans.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.plugin_utils._migrate.migrator import Migrator
from ansible_collections.convoy.upgrade.plugins.plugin_utils._migrate.outcome import MigrationResult
from devkit.child import die_with_parent
from devkit.kv import RawKV
from integration.support.processes.writes import Write, around_writes, die_at_write

BEGAN = 1428312345.67


def legacy_reports(hosts: Sequence[str], version: str = "v673", prefix: str = "") -> dict[str, str]:
    """Return the versions that hosts reported, as ``update_own_info`` wrote it."""
    return {f"{prefix}running_version/{version}/{host}": f"{BEGAN + at:.2f}" for at, host in enumerate(hosts)}


def legacy_gates(gates: Mapping[str, str], prefix: str = "") -> dict[str, str]:
    """Return operators' pauses as ``manage_config`` wrote them: ``{"global": "False", "host/compute1": "True"}``."""
    return {f"{prefix}config_state/{place}/enable_puppet": value for place, value in gates.items()}


def old_fleet(hosts: Sequence[str], *, version: str = "v674") -> dict[str, str]:
    """Return the keys of a fleet in the middle of a rollout: two thirds run the previous version, two hosts are paused.

    The rollout's gates are JSON, as ``DeploymentUpgrader`` wrote them; pauses, and that there is none, are words.
    """
    third = len(hosts) // 3
    gates = {"global": "false", "role/controller": "true"}
    gates |= {f"host/{host}": "true" for host in hosts[third : third + 20] if host != hosts[-1]}
    pauses = {"global": "True", f"host/{hosts[0]}": "False", f"host/{hosts[-1]}": "false"}
    return {
        "current_version": f"{version}\n",
        **legacy_reports(hosts[:third], version),
        **legacy_reports(hosts[third:], "v673"),
        **{f"config_state/enable_puppet/{place}": value for place, value in gates.items()},
        **legacy_gates(pauses),
        "config_state/role/compute/enable_update": "True",
        "running_version/": "",
    }


def load(consul: RawKV, keys: Mapping[str, str]) -> None:
    """Write keys as they are."""
    consul.load(keys.items())


def whole(consul: RawKV) -> dict[str, tuple[str, int, str]]:
    """Return key -> value (as Consul returns it), flags and locking session of all that is in Consul."""
    return {one["Key"]: (one["Value"] or "", one["Flags"], one.get("Session", "")) for one in consul.entries()}


def migrate(settings: Settings, **options: Any) -> None:
    """Migrate to the end."""
    Migrator(Store(settings), **options).run()


def migrated(store: Store, *, dry: bool = False, **options: Any) -> MigrationResult:
    """Migrate to the end with this store, and return what came of it."""
    return Migrator(store, **options).run(dry=dry)


def refusal(store: Store, **options: Any) -> UpgradeError:
    """Return what a migration is refused with."""
    with pytest.raises(UpgradeError) as caught:
        migrated(store, **options)
    return caught.value


def writes_of(settings: Settings, **options: Any) -> int:
    """Migrate to the end, and return by how many transactions."""
    store = Store(settings)
    count = 0

    def counted(write: Write, operations: Sequence[Any]) -> Any:
        nonlocal count
        count += 1
        return write(operations)

    around_writes(store, counted)
    Migrator(store, **options).run()
    return count


def killed_at(settings: Settings, number: int, *, after: bool, **options: Any) -> bool:
    """Migrate in a process that is killed by SIGKILL right before or after the transaction with this number.

    :returns: whether it came so far; if not, it has migrated to the end.
    """

    def act() -> None:
        store = Store(settings)
        die_at_write(store, number, after=after)
        Migrator(store, **options).run()

    status = forked(act)
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0, "the migrator failed before it was killed"
    return os.WIFSIGNALED(status)


def forked(act: Callable[[], None]) -> int:
    """Do something in a process of its own, which begins at once; return how that ended, as ``waitpid`` returns it."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            die_with_parent()
            act()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]


def hosts_of(keys: Iterable[str], folder: str) -> set[str]:
    """Return the last parts of the keys in a folder."""
    return {key.rpartition("/")[2] for key in keys if key.startswith(folder)}
