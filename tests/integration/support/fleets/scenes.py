# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A rollout that has run for some time, written to Consul without the collection: three stages, steps, failures, a hold, an approval."""

from __future__ import annotations

import heapq
import json
import random
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from devkit.kv import RawKV
from integration.support.fleets.fleet import GATES

OLD, NEW = "2.8", "2.10"
SERVICES = {"controller": ("haproxy", "keystone"), "compute": ("openvswitch", "nova_compute"), "storage": ("ceph_osd",)}
STEPS = ("prepare", "stop", "upgrade", "start", "verify")
ERROR = """nova-compute did not come up on {host}: the service failed
Job for nova-compute.service failed because the control process exited with error code.
See "systemctl status nova-compute.service" and "journalctl -xeu nova-compute.service" for details."""
RULES: dict[str, Any] = {
    "failure_rules": {"fleet": 5},
    "health": {"soak": 60},
    "role_order": {"compute": ["controller"], "storage": ["controller"]},
    "rolling_rules": {"fleet": 15, "global": 1, "roles": {"compute": "5%", "storage": 2}},
    "stages": [
        {"approve": True, "hosts": 1, "name": "canary", "soak": 600},
        {"hosts": "10%", "name": "early", "soak": 900},
        {"name": "rest"},
    ],
}


@dataclass
class Scene:
    """What is written.

    :param computes: number of compute hosts, beside 3 controllers and 20 storage hosts.
    :param share: how much of the third stage has begun, from 0 to 1.
    :param waits: let the canary stage wait for its approval.
    :param broken: hosts that fail -> their error.
    :param now: unix seconds.
    """

    computes: int = 200
    share: float = 0.35
    waits: bool = False
    broken: Mapping[str, str] = field(default_factory=lambda: {"compute31": ERROR.format(host="compute31")})
    now: float = field(default_factory=time.time)
    fleet: dict[str, str] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        counts = {"controller": 3, "compute": self.computes, "storage": 20}
        self.fleet = {f"{role}{at}": role for role, count in counts.items() for at in range(1, count + 1)}
        self._random = random.Random(23)
        self._begun = 0
        self._upgraded: set[str] = set()

    def write(self, consul: RawKV) -> Mapping[str, str]:
        """Write it; return host -> role."""
        if not self.waits:
            # The first time finds out how long it takes.
            took = self._simulate(0, 2**40)
            self.keys, self.events, self._upgraded, self._random = {}, [], set(), random.Random(23)
        self._simulate(int(self.now) - (3_600 if self.waits else took), int(self.now))
        consul.load([*self.keys.items()])
        return self.fleet

    def _simulate(self, begun: int, now: int) -> int:
        """Make the keys of a rollout that began at a time; return when the share of the last stage had been admitted."""
        self._begun = begun
        self.keys = {"current_version": NEW, f"{GATES}/global": "False", "upgrade/schema": "1", "upgrade/hold/": ""}
        first = self._by_role({"controller": 1, "compute": 1, "storage": 1})
        early = self._by_role({"compute": max(1, self.computes // 10), "storage": 2}, first)
        order = ["controller2", "controller3"]
        rest = [host for host in self.fleet if host not in {*first, *early, *order}]
        self._add(
            self._begun, "begin", **{"from": OLD}, instructions=RULES, by="ann", reason=f"ann@deploy1 asked for {NEW}"
        )
        at = self._stage(self._begun + 2, "canary", "stage canary began")
        at = self._upgrade(first, at, 3)
        self._stage(at, "canary", "all of its hosts are upgraded")
        if self.waits:
            number, done_at = 0, now - 1320
        else:
            done_at = 0
            at = self._add(at + 900, "approve", stage="canary", by="ann", reason="logins work")
            at = self._stage(at + 1, "early", "stage early began")
            at = self._upgrade(["controller2", "controller3"], at, 1)
            at = self._upgrade(early, at, max(4, self.computes // 20))
            self._stage(at, "early", "all of its hosts are upgraded")
            at = self._stage(at + 900, "rest", "stage rest began")
            number = 2
            count = int(len(rest) * self.share)
            at = self._upgrade(
                rest[:count] if now == 2**40 else rest,
                at,
                12 if self.computes <= 400 else self.computes // 20,
                until=now,
            )
        self.keys["upgrade/hold/host/storage7"] = json.dumps(
            {"reason": "a disk is being replaced", "by": "bob", "at": "2026-11-24T09:12:00Z"}
        )
        self._add(
            now - 1800,
            "hold",
            hosts={"storage7": "a disk is being replaced"},
            by="bob",
            reason="a disk is being replaced",
        )
        for host in self.fleet:
            if host not in self._upgraded:
                self.keys[f"running/versions/{OLD}/{host}"] = "1789000000"
        self._finish(number, done_at)
        return max((event["at"] for event in self.events if event["what"] == "open"), default=0)

    def _finish(self, number: int, done_at: int) -> None:
        self.events.sort(key=lambda one: one["at"])
        for epoch, event in enumerate(self.events, 1):
            entry = {"epoch": epoch, "commit": f"{epoch:032x}", "version": NEW, "who": "ann@deploy1", **event}
            self.keys[f"upgrade/history/{epoch}"] = json.dumps(entry)
        members: dict[str, int] = {}
        for role in self.fleet.values():
            members[role] = members.get(role, 0) + 1
        stage = {"number": number, **({"done_at": done_at} if done_at else {})}
        ledger = {
            "epoch": len(self.events), "commit": f"{len(self.events):032x}", "version": NEW, "previous_version": OLD, "state": "running",
            "instructions": RULES, "members": members, "since": self._begun, "who": "ann", "stage": stage, "begun_index": 1,
        }  # fmt: skip
        self.keys["upgrade/ledger"] = json.dumps(ledger)
        if number:
            approval = {"by": "ann", "at": self._begun + 2000, "reason": "logins work"}
            self.keys["upgrade/approval/canary"] = json.dumps(approval)

    def _by_role(self, counts: Mapping[str, int], without: Iterable[str] = ()) -> list[str]:
        left = [host for host in self.fleet if host not in set(without)]
        return [
            host for role, count in counts.items() for host in [one for one in left if self.fleet[one] == role][:count]
        ]

    def _add(self, at: int, what: str, **more: Any) -> int:
        self.events.append({"at": at, "what": what, **more})
        return at

    def _stage(self, at: int, name: str, reason: str) -> int:
        return self._add(at, "stage", stage=name, reason=reason)

    def _upgrade(self, hosts: list[str], at: int, cap: int, until: int | None = None) -> int:
        """Upgrade hosts from a time on, so many at once; return when the last one was done."""
        slots = [at] * cap
        admissions: dict[int, list[str]] = {}
        last = at
        for host in hosts:
            begins = heapq.heappop(slots) + 2
            if until is not None and begins > until:
                break
            ends = self._host(host, begins, until or 2**40)
            heapq.heappush(slots, ends)
            last = max(last, ends)
            admissions.setdefault(begins, []).append(host)
        for begins, found in admissions.items():
            why = {host: f"rolling_rules admits {cap} of role {self.fleet[host]} at once" for host in found}
            self._add(begins, "open", hosts=why, roles={})
        return last

    def _host(self, host: str, begins: int, until: int) -> int:
        """Let a host be admitted; return when its slot is free."""
        now, trail, role = begins + self._random.randrange(2, 9), [], self.fleet[host]
        self.keys[f"{GATES}/host/{host}"] = "True"
        record: dict[str, Any] = {"version": NEW, "attempt": 1, "times": {"started": now}, "state": "started"}
        # Its node agent runs the tasks of its services.
        record |= {"release": "0.1.0", "services": "a" * 12}
        for service in SERVICES[role]:
            for step in STEPS:
                if now >= until:
                    break
                trail.append([now, service, step])
                record |= {"service": service, "step": step}
                now += self._random.randrange(3, 70 if step == "upgrade" else 25)
                if host in self.broken and step == "start":
                    error = self.broken[host]
                    failed = [now, 1, service, step, error[-200:], 1]
                    record |= {
                        "state": "failed",
                        "error": error,
                        "times": {"failed": now},
                        "failures": [failed],
                        "trail": trail,
                    }
                    self.keys[f"upgrade/hosts/{host}"] = json.dumps(record)
                    return 2**40
        if now < until - 61:
            record |= {
                "state": "upgraded",
                "reported": NEW,
                "times": {"started": trail[0][0], "upgraded": now},
                "trail": [*trail, [now, "", ""]],
            }
            record.pop("service")
            record.pop("step")
            self._upgraded.add(host)
            self.keys[f"running/versions/{NEW}/{host}"] = str(now)
            self.keys[f"upgrade/health/{host}"] = json.dumps(
                {"version": NEW, "since": now, "upgraded": True, "reported": now}
            )
        else:
            record["trail"] = trail
        self.keys[f"upgrade/hosts/{host}"] = json.dumps(record)
        return now + 61
