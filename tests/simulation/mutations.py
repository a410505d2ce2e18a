# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Deliberate faults of the product: the simulation is worth what it finds of them.

    python tests/simulation/mutations.py [--nights N] [NAME ...]

Each fault is made in a copy of the collection, in which nights are simulated until one fails, beginning with the one that found it the last
time. It prints that night, and notes it in mutation_nights.json. The exit code is the number of faults that no night found.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NIGHTS = 2000
# Fault -> the seed of the night that found it the last time.
FOUND = Path(__file__).with_name("mutation_nights.json")


@dataclass(frozen=True)
class Mutation:
    """A deliberate fault.

    :param file: below ``plugins/module_utils``, in ``plugins/plugin_utils/``, or in ``agent/``.
    :param old: text that is there once, ``new`` what replaces it.
    :param night: the module with the nights that are to find it.
    """

    name: str
    file: str
    old: str
    new: str
    night: str = "night"

    @property
    def path(self) -> str:
        """Its file, below the root of the repository."""
        return self.file if self.file.startswith(("agent/", "plugins/")) else f"plugins/module_utils/{self.file}"


_WRITER, _ADMISSION, _PASS = "_state/ledger_writer.py", "_rollout/opened_gates.py", "_passes/planner_pass.py"
_STATES, _NAMES = "_host_states/states.py", "_host_states/state_names.py"
_SLOTS, _PLAN = "_planner/slots.py", "_planner/admission.py"
_STAGES, _BLOCKERS, _LIFECYCLE = "_planner/stage_progress.py", "_planner/blockers.py", "_rollout/lifecycle.py"
_HOLD, _NEEDS = "_rollout/_commands/hold.py", "_observe/operator_needs.py"
_FLEET, _CACHE = "_planner/fleet_state.py", "_cache/key_cache.py"
_JOBS, _SNAPSHOT = "job_night", "_state/snapshot.py"
_JOB_RUN = "agent/convoy_node/jobs/job_run.py"
_SERVICE = "plugins/plugin_utils/_planner_service/planner_service.py"
_SOAK, _BUDGETS, _START = "_host_states/soak.py", "_host_states/failure_budgets.py", "_host/start.py"

MUTATIONS = (
    Mutation(
        "a planner service carries what was not handed over", _SERVICE, "if not handover.is_of(ledger):", "if False:"
    ),
    Mutation(
        "a planner service goes on after its handover was replaced",
        _WRITER,
        "check = [compare(key, self._handover)] if self._handover else []",
        "check: list[Operation] = []",
    ),
    Mutation(
        "a host that tries again counts under no budget",
        _FLEET,
        "one.state in BROKEN or one.tries_again or",
        "one.state in BROKEN or",
    ),
    Mutation(
        "the ledger is set without comparing it",
        _WRITER,
        "compare_and_put(keys.ledger, encode_ledger(ledger), self._index)",
        "put(keys.ledger, encode_ledger(ledger))",
    ),
    Mutation("a lost answer counts as done", _WRITER, 'any(e.get("commit") == commit for e', "any(True for e"),
    Mutation(
        "the epoch is not counted up",
        "_state/store.py",
        "            return ledger.epoch + 1\n",
        "            return max(1, ledger.epoch)\n",
    ),
    Mutation("history has another epoch", _WRITER, "put(keys.event(ledger.epoch)", "put(keys.event(ledger.epoch + 1)"),
    Mutation(
        "the history keeps one rollout too few",
        "_state/history_retention.py",
        ".keep_rollouts :]",
        ".keep_rollouts + 1 :]",
    ),
    Mutation(
        "caps are one too high",
        _SLOTS,
        "cap.slots - taken.get(cap.what, 0) for",
        "cap.slots + 1 - taken.get(cap.what, 0) for",
    ),
    Mutation(
        "the cap of the fleet is forgotten",
        _SLOTS,
        "found[role] = (*(cap for cap in own if cap is not None), *fleet)",
        "found[role] = (*(cap for cap in own if cap is not None),)",
    ),
    Mutation(
        "a role's own cap is forgotten in a group",
        _SLOTS,
        "if role != group_name and role in rules.caps:",
        "if False:",
    ),
    Mutation(
        "slots are not taken within a pass",
        _SLOTS,
        "taken[cap.what] = taken.get(cap.what, 0) + count",
        "pass",
    ),
    Mutation(
        "failed hosts take no slot", _NAMES, "frozenset((FAILED, LOST, UPGRADING))", "frozenset((LOST, UPGRADING))"
    ),
    Mutation(
        "lost hosts take no slot", _NAMES, "frozenset((FAILED, LOST, UPGRADING))", "frozenset((FAILED, UPGRADING))"
    ),
    Mutation(
        "a host that started takes no slot behind a closed gate",
        _STATES,
        "if one.gate.is_open or (record is not None and record.state == STARTED):\n",
        "if one.gate.is_open:\n",
    ),
    Mutation(
        "an older report counts more than a newer start",
        _STATES,
        "return not record.readable or record.state != RECORDED_UPGRADED",
        "return False",
    ),
    Mutation("holds are forgotten", _STATES, "waiting = HELD if one.hold else PENDING", "waiting = PENDING"),
    Mutation(
        "a hold leaves the ledger as it is",
        _HOLD,
        "if snapshot.ledger is None:\n        # A planner",
        "if True:\n        # A planner",
    ),
    Mutation("a hold leaves the key of its folder as it is", _HOLD, "operations = [mark, *(", "operations = [*("),
    Mutation("roles do not wait for others", _PLAN, "if not position.waits_for(role)}", "}"),
    Mutation(
        "only the first host of a role counts for the order",
        _PLAN,
        "role: [one for one in found if one.blocks_others] for role, found in hosts.items()",
        "role: [one for one in found[:1] if one.blocks_others] for role, found in hosts.items()",
    ),
    Mutation("pause is forgotten", _BLOCKERS, "if ledger.state == PAUSED:", "if False:"),
    Mutation("abort is forgotten", _BLOCKERS, "if ledger.state == ABORTED:", "if False:"),
    Mutation("windows and freezes are forgotten", _BLOCKERS, "if closed is not None:", "if False:"),
    Mutation("the fleet's failure budget is forgotten", _BLOCKERS, "if exhausted is not None:", "if False:"),
    Mutation("budgets are one too high", _BUDGETS, "len(hosts) >= allowed", "len(hosts) > allowed"),
    Mutation("budgets of roles are forgotten", _PLAN, "exhausted = blockers.budgets.by_role", "exhausted = ()"),
    Mutation(
        "a stage needs no approval",
        _STAGES,
        "if stage.approve and stage.name not in snapshot.approvals:",
        "if False:",
    ),
    Mutation("a stage does not soak", _STAGES, "ready = done_at + stage.soak", "ready = done_at"),
    Mutation(
        "a stage counts as done since the beginning of its soak",
        _STAGES,
        "stored = int(snapshot.now) if done_at is None else done_at",
        "stored = int(snapshot.now) - stage.soak if done_at is None else done_at",
    ),
    Mutation(
        "a stage does not wait for its hosts",
        _STAGES,
        "        if unfinished:\n            again",
        "        if False:\n            again",
    ),
    Mutation(
        "approvals outlive the rollout",
        _LIFECYCLE,
        "            remove_tree(keys.approvals),\n",
        "",
    ),
    Mutation(
        "health marks outlive the rollout",
        _LIFECYCLE,
        "if goes_on else (remove_tree(keys.marks),)",
        "if True else (remove_tree(keys.marks),)",
    ),
    Mutation("hosts do not soak", _SOAK, "ready = since + rules.soak", "ready = since"),
    Mutation(
        "every host soaked before the rollout began",
        _STATES,
        "return newest <= ledger.begun_index",
        "return True",
    ),
    Mutation(
        "a pass that begins a rollout admits hosts too",
        _PASS,
        "if (desired.begins or ends_job) and not writer.dry:",
        "if False:",
    ),
    Mutation(
        "a rollout begins with open gates",
        _LIFECYCLE,
        "wiped, changes = _one_gate(keys, snapshot, CLOSED)\n    version",
        "wiped, changes = _one_gate(keys, snapshot, OPEN)\n    version",
    ),
    Mutation(
        "a rollout completes too early",
        "_planner/reconcile.py",
        "complete=may_be_over and bool(fleet.hosts) and fleet.is_upgraded",
        "complete=may_be_over and bool(unfinished)",
    ),
    Mutation("a new key stays unseen", _CACHE, "if not self._add_partitions(folder):", "if False:"),
    Mutation(
        "the keys of a refresh are of two moments",
        _CACHE,
        "if any(self._top(prefix) != top for prefix, top in tops.items()):",
        "if False:",
    ),
    Mutation("a start compares no gates", _START, "for one in sorted(dependencies & entries.keys())", "for one in ()"),
    Mutation(
        "a start that met a new gate is not undone",
        _START,
        'is_created = not absent.isdisjoint(one["Key"] for one in written)',
        "is_created = False",
    ),
    Mutation("a start is not checked", _START, "    _refuse_unless_admitted(store, request, entries.values())\n", ""),
    Mutation(
        "a planner goes on after a restore", "_passes/restored_consul.py", "    if found < epoch:\n", "    if False:\n"
    ),
    Mutation(
        "hosts never get their gate back",
        "_host_states/host_state.py",
        "return self.hold is None and self.was_admitted and not self.is_busy",
        "return False",
    ),
    Mutation(
        "a retry leaves hosts failed",
        "_rollout/_commands/retry_choice.py",
        "        elif view.state in state_names.BROKEN:\n",
        "        elif False:\n",
    ),
    Mutation("a held host may start", "_host/gate_question.py", "    if hold is not None:\n", "    if False:\n"),
    Mutation(
        "a host that runs a job takes no slot of a rollout",
        _SNAPSHOT,
        "busy=_started(self._job_records)",
        "busy={}",
        _JOBS,
    ),
    Mutation(
        "a host with an open gate takes no slot of a job",
        _STATES,
        "other = snapshot.busy.get(host) or _may_start(snapshot, host, role)",
        "other = snapshot.busy.get(host)",
        _JOBS,
    ),
    Mutation(
        "a node starts a job without comparing its gate",
        "agent/convoy_node/jobs/reports.py",
        "for key in sorted(depends) if key in found",
        "for key in ()",
        _JOBS,
    ),
    Mutation(
        "a node runs a job again that it has run",
        _JOB_RUN,
        "        if before is not None and not is_new:\n",
        "        if False:\n",
        _JOBS,
    ),
    Mutation(
        "a start whose answer was lost stays for ever",
        "agent/convoy_node/jobs/job_need.py",
        '    if record.get("state") != STARTED or job == identifier or',
        "    if True or",
        _JOBS,
    ),
    Mutation(
        "an earlier job takes no slot of a job for other hosts",
        _STATES,
        "        if other is None:\n",
        "        if False:\n",
        _JOBS,
    ),
    Mutation(
        "default reads in place of consistent ones",
        "_consul/client.py",
        '_CONSISTENT = (("consistent", "1"),)',
        "_CONSISTENT: tuple[tuple[str, str], ...] = ()",
    ),
    Mutation("a needed approval is not named", _NEEDS, "if plan.needs_approval and plan.stage:", "if False:"),
    Mutation("the status does not say that it is paused", _NEEDS, "if code == PAUSE:", "if False:"),
)


def main() -> int:
    """Try all faults, or those whose names are given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nights", type=int, default=NIGHTS)
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    chosen = [one for one in MUTATIONS if not given.names or one.name in given.names]
    if unknown := set(given.names) - {one.name for one in MUTATIONS}:
        parser.error(f"there is no fault {sorted(unknown)}")
    missed = 0
    seeds = recorded()
    for mutation, seed in tried(chosen, given.nights):
        missed += seed is None
        shown = f"found by seed {seed}" if seed is not None else f"NOT found in {given.nights} nights"
        print(f"{mutation.name}: {shown}", flush=True)
        if seed is not None:
            seeds[mutation.name] = seed
            known = {one.name: seeds[one.name] for one in MUTATIONS if one.name in seeds}
            FOUND.write_text(json.dumps(known, indent=1) + "\n")
    print(f"{len(chosen) - missed} of {len(chosen)} faults found")
    return missed


def recorded() -> dict[str, int]:
    """Return fault -> the seed of the night that found it the last time."""
    found: dict[str, int] = json.loads(FOUND.read_text())
    return found


def tried(mutations: Sequence[Mutation], nights: int) -> Iterator[tuple[Mutation, int | None]]:
    """Yield each fault with the seed of the first night that failed, None if none did."""
    seeds = recorded()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(lambda one: seed_that_finds(one, nights, seeds.get(one.name, 1)), mutations)
        yield from zip(mutations, found, strict=True)


def seed_that_finds(mutation: Mutation, nights: int, first: int) -> int | None:
    """Simulate nights of a copy of the collection with a fault; return the seed of the first night that failed.

    :param nights: at most so many, from the seed ``first`` on.
    :raises RuntimeError: if the nights could not be simulated, such as when a syntax error was made, or if that night fails without the fault too.
    """
    with tempfile.TemporaryDirectory(prefix="convoy-mutation-") as folder:
        collection = Path(folder) / "ansible_collections/convoy/upgrade"
        collection.mkdir(parents=True)
        for name in ("plugins", "agent"):
            shutil.copytree(ROOT / name, collection / name, ignore=shutil.ignore_patterns("__pycache__"))
        apply(mutation, collection)
        found = _first_failure(Path(folder), mutation, range(first, first + nights))
        if found is None:
            return None
        shutil.copy(ROOT / mutation.path, collection / mutation.path)
        if _first_failure(Path(folder), mutation, range(found, found + 1)) is not None:
            raise RuntimeError(f"{mutation.name}: the night with the seed {found} fails without the fault too.")
        return found


def _first_failure(folder: Path, mutation: Mutation, seeds: range) -> int | None:
    """Return the first seed whose night fails with the collection that is below a folder; None if none does."""
    paths = (folder, folder / "ansible_collections/convoy/upgrade/agent", ROOT / "tests", ROOT / "tools")
    environ = {**os.environ, "PYTHONPATH": ":".join(map(str, paths))}
    command = [sys.executable, "-c", _SEARCH, mutation.night, str(seeds.start), str(seeds.stop)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{mutation.name}: {done.stderr[-2000:]}")
    return int(done.stdout) or None


def apply(mutation: Mutation, folder: Path) -> None:
    """Make a fault in a copy of the repository.

    :raises RuntimeError: if what it replaces does not stand there exactly once.
    """
    file = folder / mutation.path
    text = file.read_text()
    if text.count(mutation.old) != 1:
        raise RuntimeError(f"{mutation.name}: {mutation.file} has {mutation.old!r} {text.count(mutation.old)} times.")
    file.write_text(text.replace(mutation.old, mutation.new))


_SEARCH = """
import importlib, sys
run = importlib.import_module(f"simulation.{sys.argv[1]}").run
print(next((seed for seed in range(*map(int, sys.argv[2:])) if run(seed).violations), 0))
"""


if __name__ == "__main__":
    sys.exit(main())
