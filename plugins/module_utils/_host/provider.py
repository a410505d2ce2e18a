# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The upgrade of a provider: one host at a time is at it, under a lock, and what it finishes stands in the provider's own key.

The lock goes with the session of the run, and is wiped when another rollout begins; the provider's key stays.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, replace

from .._common.errors import UpgradeError
from .._consul.errors import Conflict
from .._consul.operations import compare, compare_and_put, lock, remove, unlock
from .._fleet.checkpoints import is_checkpoint_group
from .._fleet.providers import UPGRADED, Provider
from .._state.codec import decode_version
from .._state.provider_codec import decode_provider, encode_provider
from .._state.store import Store
from . import leases, once_for_all


@dataclass(frozen=True, slots=True)
class ProviderState:
    """A provider, and the host that is at it or was.

    :param index: the ModifyIndex of its key, 0 where there is none.
    :param wanted: the version that the fleet should run, None where none is set; ``wanted_index`` is its ModifyIndex.
    """

    provider: Provider
    index: int = 0
    holder: once_for_all.RunOnceState | None = None
    wanted: str | None = None
    wanted_index: int = 0

    def has_done(self, unit: str, version: str) -> bool:
        """Return whether nothing of a unit is left to do on the way to a version."""
        if self.provider.is_at(version):
            return True
        return unit in self.provider.done and (self.provider.target == version or is_checkpoint_group(unit))


def lock_of(name: str) -> str:
    """Return what the lock is called, among the units that one host runs for all."""
    return f"provider/{name}"


def read_provider(store: Store, version: str, name: str, host: str = "", session: str = "") -> ProviderState:
    """Return where a provider is, and who is at it: one request, two where a host is in the midst of a unit without its lock.

    The lock is of one rollout, and is wiped when another begins. So a host without one, which a run still drives that is
    not the caller's, is at it all the same; ``index`` of the holder is 0 then.

    :param host: who asks, whose own claim is no hindrance; empty for somebody who does not want to begin.
    :param session: the asking run's.
    """
    key, held = store.keys.provider(name), store.keys.once(version, lock_of(name))
    current = store.keys.current_version
    entries = {entry.key: entry for entry in store.client.read((key, held, current))}
    found, entry, wanted = entries.get(key), entries.get(held), entries.get(current)
    there = decode_provider(key, found.value) if found is not None else Provider()
    holder = once_for_all.decode(entry, lock_of(name)) if entry is not None else None
    is_midway = bool(there.target and there.unit and not there.error)
    if holder is None and host and is_midway and there.host not in ("", host):
        driver = leases.holding_session(store, there.host)
        if driver not in ("", session):
            holder = once_for_all.RunOnceState(once_for_all.RUNNING, there.host)
    return ProviderState(
        there,
        found.modify_index if found is not None else 0,
        holder,
        decode_version(current, wanted.value) if wanted is not None else None,
        wanted.modify_index if wanted is not None else 0,
    )


def refuse_to_begin(found: ProviderState, version: str, name: str, host: str, origin: str) -> None:
    """Refuse to let a host begin a unit of a provider that has gone elsewhere, or of a rollout that is not the fleet's any more.

    :param version: where the host's rollout leads.
    :param origin: as for :func:`begin_provider`.
    :raises UpgradeError: ``overtaken``, ``provider_moved``.
    """
    if found.wanted != version:
        raise UpgradeError(
            "overtaken",
            f"The fleet should run {found.wanted!r} now, and not {version!r} any more, so {host} begins nothing more of the "
            f"provider {name}.",
        )
    _refuse_moved(found.provider, name, origin)


def begin_provider(
    store: Store,
    session: str,
    version: str,
    name: str,
    host: str,
    unit: str,
    origin: str,
    units: Collection[str],
    found: ProviderState,
) -> bool:
    """Let a host begin a unit of a provider; return whether it may, which is not so where another one was faster.

    :param origin: the version that it comes from, as far as that is known; after a way back that did not end, it is not what
        its key says.
    :param units: the provider's, as far as they are on its way.
    :param found: what :func:`read_provider` gave, and :func:`refuse_to_begin` let pass; nothing is written if it is not so any more.
    """
    before = found.provider
    after = Provider(origin or before.version, version, host, unit, _kept(before, version, units), at=int(time.time()))
    held = store.keys.once(version, lock_of(name))
    operations = [
        compare(store.keys.current_version, found.wanted_index),
        compare(held, found.holder.index if found.holder else 0),
        lock(held, once_for_all.value(once_for_all.RUNNING, host), session),
        compare_and_put(store.keys.provider(name), encode_provider(after), found.index),
    ]
    try:
        store.client.write(operations)
    except Conflict:
        return False
    return True


def record_progress(
    store: Store,
    session: str,
    version: str,
    name: str,
    host: str,
    units: Collection[str],
    *,
    has_begun: bool = False,
    done: Collection[str] = (),
    is_complete: bool = False,
    error: str = "",
    origin: str = "",
) -> bool:
    """Write down how far the host that is at a provider has come; return whether it still was at it.

    Where the fleet should run another version by now, a host that has begun nothing says nothing.

    :param units: the provider's, as far as they are on its way.
    :param has_begun: whether it has begun a unit, so that the provider's key has to say so still.
    :param done: the units that it has finished, in addition to those before.
    :param is_complete: whether that was all, so that the provider is at the version.
    :param error: why the unit under way failed.
    :param origin: as for :func:`begin_provider`.
    :raises UpgradeError: ``provider_moved`` where it has begun nothing, and the provider has gone elsewhere.
    :raises Conflict: if somebody wrote in between; then it may be tried again.
    """
    found = read_provider(store, version, name, host, session)
    if found.holder is not None and found.holder.state == once_for_all.RUNNING and found.holder.host != host:
        return False
    if found.provider.is_at(version):
        return True
    if has_begun and (found.provider.target, found.provider.host) != (version, host):
        # Another rollout took it on meanwhile, and may be through with it.
        return False
    if not has_begun:
        if found.wanted != version:
            return True
        _refuse_moved(found.provider, name, origin)
    before, now = found.provider, int(time.time())
    every = tuple(dict.fromkeys((*_kept(before, version, units), *done)))
    unit = before.unit if error else ""
    after = replace(before, target=version, host=host, unit=unit, done=every, error=error, at=now)
    state = once_for_all.FAILED if error else once_for_all.RUNNING
    if is_complete:
        after, state = Provider(version, host=host, at=now), once_for_all.DONE
    held = store.keys.once(version, lock_of(name))
    # Locked once more, as the session may have been lost meanwhile, and nobody else has come.
    operations = [
        compare(held, found.holder.index if found.holder else 0),
        lock(held, once_for_all.value(state, host, error), session),
        compare_and_put(store.keys.provider(name), encode_provider(after), found.index),
    ]
    if not has_begun:
        operations.append(compare(store.keys.current_version, found.wanted_index))
    if state != once_for_all.RUNNING:
        operations.append(unlock(held, once_for_all.value(state, host, error), session))
    store.client.write(operations)
    return True


def release_provider(store: Store, version: str, name: str, host: str) -> None:
    """Let another host take a provider on, at the next unit.

    :raises Conflict: if somebody wrote in between; then it may be tried again.
    """
    found = read_provider(store, version, name)
    if found.holder is not None and (found.holder.state, found.holder.host) == (once_for_all.RUNNING, host):
        held = store.keys.once(version, lock_of(name))
        store.client.write([compare(held, found.holder.index), remove(held)])


def _refuse_moved(provider: Provider, name: str, origin: str) -> None:
    if origin and provider.state == UPGRADED and provider.version not in ("", origin):
        raise UpgradeError(
            "provider_moved",
            f"The provider {name} is at {provider.version} by now, and this run worked out its way from {origin}. Run the same "
            "command again with -e retry_failed=true; it works out the way from there.",
        )


def _kept(provider: Provider, version: str, units: Collection[str]) -> tuple[str, ...]:
    """Return what stays finished on the way to a version: points that do not lie on it are before it again."""
    if provider.target == version:
        return provider.done
    return tuple(unit for unit in provider.done if is_checkpoint_group(unit) and unit in units)
