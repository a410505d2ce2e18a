# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The handover of a rollout to planner services: a run begins the rollout, and they carry it to its end, beside the run or after it.

A planner service admits no host of a rollout that was not handed over, because only the run that began it knows which hosts may be
admitted, and which hosts Ansible upgrades.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .._codecs.handover import decode_answer, decode_handover, encode_handover
from .._codecs.values import decode_ledger
from .._common import runtime
from .._common.errors import UpgradeError
from .._common.names import job_id, rollout_text
from .._common.sanitize import option, sanitize
from .._consul.client import KVEntry
from .._consul.operations import Change, compare, compare_and_put, remove
from .._consul.retry import TRIES_OF_LEDGER, retry_on_conflict
from .._consul.watch import BlockingQueries, Watch
from .._fleet.fleet import Snapshot
from .._fleet.ledger import SECONDS_TO_ANSWER, Handover, Ledger
from .._state.store import Store, current_user
from .job_request import needs_tasks

# Once one service has answered, the others have so long to answer too (seconds).
_SECONDS_OF_OTHERS = 2.0


def require_planner(store: Store) -> tuple[str, ...]:
    """Return the names of the planner services that run: one request.

    :raises UpgradeError: ``no_planner`` if there is none, and what :meth:`ConsulClient.read` raises.
    """
    names = tuple(store.client.names(store.keys.planners))
    if not names:
        raise UpgradeError(
            "no_planner",
            f"No planner service runs ({store.keys.planners} has no key), so no one would carry the rollout to its end. Nothing was done. "
            "Install one with the role convoy.upgrade.planner, or start it: systemctl start convoy-planner. To let this run carry the "
            "rollout, leave -e wait=false out.",
            without=["wait"],
        )
    return names


@dataclass(frozen=True, slots=True)
class HandedOver:
    """A rollout that was handed over.

    :param changes: none if it was handed over with the same limit before.
    :param id: the ID of its handover; empty for none.
    :param planners: the planner services that carry it under that handover.
    :param warning: what an operator has to know of it; empty for nothing.
    """

    changes: Sequence[Change] = ()
    id: str = ""
    planners: tuple[str, ...] = ()
    warning: str = ""

    def as_result(self) -> dict[str, Any]:
        """Return it as a part of the module's result."""
        return {"id": self.id, "planners": list(self.planners), "warning": self.warning}


def handed_over(snapshot: Snapshot, ledger: Ledger | None) -> HandedOver:
    """Return the handover of a rollout as a snapshot has it."""
    found = snapshot.handover
    if found is None or ledger is None or not found.is_of(ledger):
        return HandedOver()
    return HandedOver(id=found.id, planners=tuple(name for name, why in snapshot.answers.items() if not why))


def hand_over(store: Store, ledger: Ledger, limit: Sequence[str] | None, *, dry: bool) -> HandedOver:
    """Hand a rollout over to planner services: one read and one write.

    :param limit: as for :class:`Handover`. It replaces the one of an earlier handover.
    :param dry: write nothing.
    :raises UpgradeError: ``needs_tasks`` for a job whose tasks Ansible runs, ``overtaken`` if another rollout has begun, ``busy``, and what
        :meth:`ConsulClient.read` and :meth:`ConsulClient.write` raise.
    """
    if ledger.by_ansible:
        raise needs_tasks(ledger)
    new = _new_handover(ledger, limit)
    keys = store.keys

    def write() -> HandedOver:
        entries = {entry.key: entry for entry in store.client.read((keys.ledger, keys.handover))}
        replaced = _replaced(store, new, ledger, entries.get(keys.handover))
        if dry:
            return replace(replaced, warning="")
        # Also if nothing else changes: after a restore of Consul, planner services wait for a new one.
        _replace(store, new, ledger, entries)
        return replaced

    return retry_on_conflict(write, lambda: keys.ledger, tries=TRIES_OF_LEDGER)


def hand_over_while_waiting(
    store: Store, ledger: Ledger, limit: Sequence[str] | None, excluded: Sequence[str] = ()
) -> HandedOver:
    """Hand a rollout over that its run waits for, so that planner services go on if the run ends: one read, and at most one write.

    Without a planner service, nothing is written, and neither if one carries the rollout with this limit already. A handover of all hosts
    stays one: a run for some of them must not end what planner services do for the others. Only ``excluded`` is taken from it. No failure
    ends the run.

    :param limit: as for :func:`hand_over`.
    :param excluded: host patterns that exclude the hosts which the run leaves out, because it can't tell how to upgrade them.
    """
    keys = store.keys
    goes_on = ledger.is_under_way or ledger.has_post_upgrade_tasks
    if ledger.by_ansible or not goes_on or (limit is not None and not limit):
        return HandedOver()
    kind = "job" if ledger.is_job else "rollout"

    def write() -> HandedOver:
        entries = {entry.key: entry for entry in store.client.read((keys.ledger, keys.handover, keys.planners))}
        services = [entry for name, entry in entries.items() if name.startswith(keys.planners)]
        if not services:
            return HandedOver()
        entry = entries.get(keys.handover)
        old = found if (found := _decoded(entry)) is not None and found.is_of(ledger) else None
        stays = limit is not None and old is not None and old.is_of_all
        kept = old.limit if old is not None and stays else limit
        new = _new_handover(ledger, tuple(dict.fromkeys((*(kept or ()), *excluded))) or None)
        if old is not None and old.limit == new.limit:
            answers = _answers_in(store, services, old.id)
            carrying = tuple(name for name, refusal in answers.items() if refusal == "")
            if stays or carrying:
                return HandedOver(id=old.id, planners=carrying)
        _replace(store, new, ledger, entries)
        return _replaced(store, new, ledger, entry)

    try:
        return retry_on_conflict(write, lambda: keys.ledger, tries=TRIES_OF_LEDGER)
    except UpgradeError as error:
        return HandedOver(
            warning=f"The {kind} could not be handed over to planner services: {error.message} If this run ends before the {kind} "
            "does, run the same command again."
        )


def command_again(ledger: Ledger) -> str:
    """Return the command that continues a rollout."""
    if ledger.is_job:
        return f"ansible-playbook convoy.upgrade.command -e job={job_id(ledger.version)}"
    return f"ansible-playbook convoy.upgrade.{'rollback' if ledger.rollback else 'upgrade'} {option('version', ledger.version)}"


def _new_handover(ledger: Ledger, limit: Sequence[str] | None) -> Handover:
    return Handover(
        ledger.version,
        ledger.since,
        None if limit is None else tuple(limit),
        runtime.new_id(),
        current_user(),
        int(runtime.now()),
    )


def _replace(store: Store, new: Handover, ledger: Ledger, entries: Mapping[str, KVEntry]) -> None:
    """Write a handover in place of the one that was read.

    :param entries: key -> what was read, with the ledger and the handover.
    :raises UpgradeError: ``overtaken``, and what :meth:`ConsulClient.write` raises.
    """
    keys = store.keys
    before, current = entries.get(keys.handover), entries.get(keys.ledger)
    found = decode_ledger(keys.ledger, current.value) if current is not None else None
    if current is None or found is None or not new.is_of(found):
        other = f"{rollout_text(found.version)}, begun by {found.who}," if found is not None else "another one"
        name = rollout_text(ledger.version)
        raise UpgradeError(
            "overtaken",
            f"{name[0].upper()}{name[1:]} was not handed over, because {other} has begun since. Look at it with ansible-playbook convoy.upgrade.status.",
        )
    index = before.modify_index if before is not None else 0
    store.client.write(
        [compare(keys.ledger, current.modify_index), compare_and_put(keys.handover, encode_handover(new), index)]
    )


def _replaced(store: Store, new: Handover, ledger: Ledger, before: KVEntry | None) -> HandedOver:
    """Return a handover that was written. It has no changes if only its ID, its author and its time are others.

    :param before: the key before that.
    """
    old, text, warning = _decoded(before), None, ""
    if old is not None:
        if (old.version, old.since, old.limit) == (new.version, new.since, new.limit):
            return HandedOver(id=new.id)
        text = encode_handover(old)
        if old.is_of(ledger) and new.limit is not None:
            warning = (
                f"Planner services carry {rollout_text(ledger.version)} only for {new.limit_text()} from now on, and before for "
                f"{old.limit_text()}, because this run replaced the handover by {old.by}."
            )
            if not new.is_of_all:
                warning += f" To have them carry it for all hosts, run {command_again(ledger)} without upgrade_limit."
    elif before is not None:
        text = before.value.decode(errors="replace")
    return HandedOver([Change(store.keys.handover, text, encode_handover(new))], new.id, warning=warning)


def _decoded(entry: KVEntry | None) -> Handover | None:
    """Return the handover in a key; None if there is none, or none that can be read."""
    if entry is None:
        return None
    try:
        return decode_handover(entry.value)
    except ValueError:
        return None


def wait_for_planner(store: Store, handover: str, seconds: float = SECONDS_TO_ANSWER) -> tuple[str, ...]:
    """Wait until a planner service carries a rollout that was handed over; return the names of the services that do.

    Once one does, the others have a moment to answer too.

    :param handover: the ID of the handover.
    :raises UpgradeError: ``no_planner`` if all services refuse it, or none answers in time, and what :meth:`ConsulClient.read` raises.
    """
    watch = Watch(store.settings, (store.keys.planners,), BlockingQueries(store.settings, short_lived=True))
    until, settled = runtime.monotonic() + seconds, 0.0
    try:
        while True:
            mark = watch.mark()
            answers = _answers(store, handover)
            carrying = tuple(name for name, refusal in answers.items() if refusal == "")
            # A service may end or refuse after it has answered. Then the others have the rest of the time.
            settled = settled or min(until, runtime.monotonic() + _SECONDS_OF_OTHERS) if carrying else 0.0
            left = (settled or until) - runtime.monotonic()
            if carrying and (left <= 0 or None not in answers.values()):
                return carrying
            # A refusal may pass, such as that of a service that is being started.
            if left <= 0:
                break
            watch.wait(mark, left)
    finally:
        watch.close()
    refusals = [f"{name}: {refusal}" for name, refusal in answers.items() if refusal]
    why = f"They refuse it: {' '.join(refusals)}" if refusals else f"None has answered within {seconds:.0f} s."
    raise UpgradeError(
        "no_planner",
        f"The rollout has begun and was handed over, but no planner service carries it. {why} Look at one with journalctl -u "
        "convoy-planner, then run the same command again. To let the run carry the rollout, leave -e wait=false out.",
        refusals=refusals,
    )


def _answers(store: Store, handover: str) -> dict[str, str | None]:
    """Return what :func:`_answers_in` returns: one request."""
    return _answers_in(store, store.client.read((store.keys.planners,)), handover)


def _answers_in(store: Store, entries: Iterable[KVEntry], handover: str) -> dict[str, str | None]:
    """Return planner service -> why it refuses a handover, empty if it carries it, None if it has not answered."""
    found: dict[str, str | None] = {}
    for entry in entries:
        answer = decode_answer(entry.value)
        name = sanitize(entry.key.removeprefix(store.keys.planners))
        found[name] = answer.refusal if answer is not None and answer.handover == handover else None
    return found


def take_back(store: Store) -> None:
    """End a handover, if there is one: from now on, planner services admit no host.

    :raises UpgradeError: what :meth:`ConsulClient.write` raises.
    """
    store.client.write([remove(store.keys.handover)])
