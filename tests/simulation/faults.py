# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What goes wrong in a night, and when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence

from fire.replay import State

from .actor import Actor
from .consul.server import Snapshot
from .network import Network
from .world import World

# Longer than any request is on its way (seconds).
_QUIET = 0.2
# A planner notices a restore so soon (seconds). If a reply to it was lost on a line that was cut, it waits for the end of that blocking query first.
_NOTICED, _LONGEST_QUERY = 30, 60

# Those that are named twice come twice as often.
KINDS = ("kill", "kill", "stop", "stop", "lose", "lose", "lead", "cut", "clock", "clock", "freeze")
# In so many nights, one process is frozen for so long (seconds), once: sessions end meanwhile, and what was read before is too old then.
_WITH_FREEZE, _FROZEN = 0.15, (6.0, 40.0)


class Faults:
    """Injects faults for some time. Each is a thread, so that one may begin before another one has ended.

    :param to_kill: those that are killed, frozen, and get wrong clocks.
    :param actors: all that are at work, these among them. Each may be stopped for a moment.
    :param restores: whether a snapshot is taken and restored on the way.
    :param without: kinds of faults that are left out.
    """

    def __init__(
        self,
        world: World,
        network: Network,
        to_kill: Sequence[Actor],
        actors: Sequence[Actor],
        *,
        restores: bool,
        without: Collection[str] = (),
    ) -> None:
        self._world = world
        self._network = network
        self._to_kill = to_kill
        self._actors = actors
        self._restores = restores
        self._snapshot: Snapshot | None = None
        self._due = 3.0
        self.count: Counter[str] = Counter()
        self.problems: list[str] = []
        # Those that had seen a newer epoch before the restore -> their PID, how many runs they had begun, and that epoch.
        self.ahead: dict[str, tuple[int, int, int]] = {}
        # The keys after the restore.
        self.restored: State = {}
        # When each was, and what.
        self.log: list[tuple[float, str]] = []
        is_frozen = world.chance.random() < _WITH_FREEZE
        left_out = {*without, *(() if is_frozen else ("freeze",))}
        self._kinds = [getattr(self, name) for name in KINDS if name not in left_out]
        # How many have not ended, and the names of those that are stopped.
        self._active = 0
        self._stopped: set[str] = set()

    def run(self, until: float) -> None:
        """Inject faults, a moment apart, as a process of its own, and wait for their ends."""
        world, chance = self._world, self._world.chance
        while world.now < until:
            world.wait(chance.uniform(0.2, 0.9))
            if self._kinds:
                self._begin(chance.choice(self._kinds))
            if self._restores and world.now > self._due:
                self._wait_for_ends()
                self._snapshot_or_restore()
        self._wait_for_ends()

    def _begin(self, act: Callable[[], None]) -> None:
        harness = self._world.current
        assert harness is not None

        def run() -> None:
            act()
            self._active -= 1

        self.count[act.__name__] += 1
        self._active += 1
        harness.start_thread(run)

    def _wait_for_ends(self) -> None:
        while self._active:
            self._world.wait(0.05)

    def kill(self) -> None:
        """Kill an actor, and start it again."""
        actor = self._world.chance.choice(self._to_kill)
        if actor.process.is_alive:
            self._note(f"{actor.name} is killed and started again")
            actor.process.kill()
            actor.start()

    def stop(self) -> None:
        """Let an actor sleep while others go on, and wake it up."""
        self._stop(self._world.chance.choice(self._actors), self._world.chance.uniform(0.3, 1.5))

    def freeze(self) -> None:
        """Let an actor sleep for much longer, once in a night."""
        self._kinds = [one for one in self._kinds if one.__name__ != "freeze"]
        self._stop(self._world.chance.choice(self._to_kill), self._world.chance.uniform(*_FROZEN))

    def _stop(self, actor: Actor, seconds: float) -> None:
        if actor.name in self._stopped:
            return
        self._note(f"{actor.name} is stopped for {seconds:.1f} s")
        self._stopped.add(actor.name)
        actor.process.stop()
        self._world.wait(seconds)
        actor.process.go_on()
        self._stopped.discard(actor.name)

    def clock(self) -> None:
        """Set an actor's clock to some other time."""
        actor, ahead = self._world.chance.choice(self._to_kill), self._world.chance.uniform(-7200, 7200)
        self._note(f"the clock of {actor.name} is {ahead:+.0f} s off from now on")
        actor.set_clock(ahead)

    def lose(self) -> None:
        """Lose the next writes on a line, or the replies to them."""
        line = self._world.chance.choice(list(self._network.lines.values()))
        count = self._world.chance.randint(1, 3)
        if self._world.chance.random() < 0.7:
            self._note(f"the next {count} replies to writes of {line.name} are lost")
            line.lost_after = count
        else:
            self._note(f"the next {count} writes of {line.name} are lost")
            line.lost_before = count

    def lead(self) -> None:
        """Let the leader be gone for a while."""
        seconds = self._world.chance.uniform(0.3, 3.0)
        if not self._network.server.has_leader:
            return
        self._note(f"Consul has no leader for {seconds:.1f} s")
        self._network.lose_leader()
        self._world.wait(seconds)
        self._network.choose_leader()

    def cut(self) -> None:
        """Cut a line for a while."""
        line = self._world.chance.choice(list(self._network.lines.values()))
        seconds = self._world.chance.uniform(0.5, 1.5)
        if line.is_cut:
            return
        self._note(f"{line.name} is cut off for {seconds:.1f} s")
        line.is_cut = True
        self._world.wait(seconds)
        line.is_cut = False

    def _snapshot_or_restore(self) -> None:
        """Take the snapshot, or restore it once; a planner that has seen a newer epoch has to stop then.

        All are stopped while Consul restores, as in the fire tests: the judge knows nothing of requests that are on their way then.
        """
        if self._snapshot is None:
            self._note("a snapshot is taken")
            self._snapshot = self._network.server.snapshot()
            self._due = self._world.now + 4
            return
        self._restores = False
        seen = {one: one.shared.epoch.value for one in self._to_kill if one.process.is_alive}
        for actor in self._actors:
            actor.process.stop()
        self._world.wait(_QUIET)
        self._note("the snapshot is restored")
        self._network.restore(self._snapshot)
        for actor in self._actors:
            actor.process.go_on()
        self.count["restore"] += 1
        self.count["ahead"] += sum(newest > self._network.epoch() and one.outlives for one, newest in seen.items())
        epoch = self._network.epoch()
        self.restored = self._network.now
        self.ahead = {
            one.name: (one.process.pid, one.shared.runs.value, newest) for one, newest in seen.items() if newest > epoch
        }
        restored_at = self._world.now
        for planner, newest in seen.items():
            if newest <= epoch or planner.outlives:
                continue
            lost_at = self._network.lines[planner.port].lost_at
            until = max(restored_at, lost_at + _LONGEST_QUERY) + _NOTICED
            while planner.process.is_alive and self._world.now < until:
                self._world.wait(0.05)
            if planner.process.is_alive and newest < self._network.ledger().get("history_from", 1):
                # Rollouts have begun and ended since, and the history no longer distinguishes a restore from that.
                self.count["overtaken"] += 1
                planner.process.kill()
            elif planner.code != "went_back":
                how = "goes on" if planner.process.is_alive else f"ended with {planner.code}"
                self.problems.append(f"{planner.name} had seen epoch {newest} before the restore, and {how}")
                planner.process.kill()
            self.count["went back"] += planner.code == "went_back"
            planner.start()

    def _note(self, what: str) -> None:
        self.log.append((self._world.now, what))
