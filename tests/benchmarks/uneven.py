# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long twelve hosts take whose upgrades take 2 to 16 s, three at once: a push run, ``host_pinned`` and ``serial: 3``.

    python tests/benchmarks/uneven.py [--rounds N]

The time of a push run is counted from its first task to its last, and also as a whole, with all checks before and after.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests")]

from devkit.agent import Agent
from devkit.wipe import wipe
from push.site import Site

# In no order, as nobody knows durations before.
SECONDS = [5, 12, 3, 9, 16, 2, 8, 14, 4, 10, 7, 6]
CAP, FORKS = 3, 5
IDEAL = sum(SECONDS) / CAP
_PLAY = "---\n- hosts: web\n  gather_facts: false\n  {how}\n  tasks:\n    - ansible.builtin.command: 'sleep {{{{ seconds }}}}'\n"


def measure(site: Site, playbook: str | Path, forks: int, **given: object) -> float:
    """Return the seconds of a run."""
    began = time.monotonic()
    ended = site.end(site.start(playbook, forks=forks, **given))
    if ended.code:
        sys.exit(ended.stdout)
    return time.monotonic() - began


def compare() -> dict[str, float]:
    """Return way -> its seconds."""
    with tempfile.TemporaryDirectory() as folder, Agent() as agent:
        wipe(agent.kv)
        site = Site(Path(folder), agent)
        site.service("app", ["upgrade"])
        hosts = [f"web{number}" for number in range(1, len(SECONDS) + 1)]
        each = {host: {"seconds": seconds} for host, seconds in zip(hosts, SECONDS, strict=True)}
        site.inventory({"web": {"services": ["app"]}}, {"web": hosts}, **each)
        found = {}
        for name, how, forks in (
            ("host_pinned", "strategy: ansible.builtin.host_pinned", CAP),
            ("serial: 3", f"serial: {CAP}", FORKS),
        ):
            play = Path(folder) / "plain.yml"
            play.write_text(_PLAY.format(how=how))
            found[name] = measure(site, play, forks)
        for host, seconds in zip(hosts, SECONDS, strict=True):
            site.sleep(seconds, host)
        rules = {"rolling_rules": {"global": CAP}}
        found["a push run as a whole"] = measure(site, "upgrade", FORKS, version="v2", instructions=rules)
        entries = site.entries()
        found["a push run"] = entries[-1].at - entries[0].at
        return found


def main() -> None:
    """Print the median of each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = [compare() for _round in range(parser.parse_args().rounds)]
    for way in sorted(rounds[0]):
        seconds = statistics.median(one[way] for one in rounds)
        print(f"{way:22} {seconds:5.1f} s, {seconds / IDEAL:.2f} of the ideal {IDEAL:.0f} s", flush=True)


if __name__ == "__main__":
    main()
