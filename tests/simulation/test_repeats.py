# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A seed repeats a night of any kind exactly, also in another process, in which sets have another order."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import zip_longest

import pytest
from thorough import quick

# It prints all that was written, and when.
_RUN = """
import importlib, sys
from simulation.network import Network

made, make = [], Network.__init__

def remember(network, *given):
    make(network, *given)
    made.append(network)

Network.__init__ = remember
result = importlib.import_module(sys.argv[1]).run(int(sys.argv[2]))
(network,) = made
for step in network.steps:
    write = step.write and (step.write.who, step.write.at, step.write.operations)
    print(step.index, step.done_at, write, step.changed())
print(network.requests, network.world.steps, network.world.now, result.faults, *result.violations)
"""
# The last ones are of post-upgrade tasks with push runs and with planner services.
_NIGHTS = (
    *(("simulation.night", seed) for seed in range(4, 10)),
    ("simulation.job_night", 0),
    ("simulation.post_upgrade.night", 0),
    ("simulation.post_upgrade.night", 1000),
)


@pytest.mark.parametrize(("module", "seed"), quick(1, _NIGHTS))
def test_a_seed_repeats_a_night_in_another_process(module: str, seed: int) -> None:
    first, again = (_lines(module, seed, order) for order in ("1", "2"))
    assert len(first) > 100
    assert next((both for both in zip_longest(first, again) if both[0] != both[1]), None) is None


def _lines(module: str, seed: int, order: str) -> list[str]:
    environ = {**os.environ, "PYTHONHASHSEED": order, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", _RUN, module, str(seed)]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout.splitlines()
