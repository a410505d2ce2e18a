# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The deliberate faults can be made, as what they replace is in the product, and simulated nights find each of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from .mutations import MUTATIONS, NIGHTS, ROOT, Mutation, apply, recorded, seed_that_finds

# Faults that no night has found yet.
UNFOUND = [
    "a hold leaves the key of its folder as it is",
    "windows and freezes are forgotten",
    "the fleet's failure budget is forgotten",
    "approvals outlive the rollout",
    "health marks outlive the rollout",
    "a pass that begins a rollout admits hosts too",
    "the keys of a refresh are of two moments",
    "a start that met a new gate is not undone",
    "a node runs a job again that it has run",
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda one: one.name)
def test_what_a_fault_replaces_is_there(mutation: Mutation, tmp_path: Path) -> None:
    file = tmp_path / mutation.path
    file.parent.mkdir(parents=True)
    shutil.copy(ROOT / mutation.path, file)
    apply(mutation, tmp_path)
    compile(file.read_text(), mutation.file, "exec")


def test_each_fault_has_a_night_that_finds_it_or_is_known_to_have_none() -> None:
    assert [one.name for one in MUTATIONS if one.name not in recorded()] == UNFOUND
    assert {*recorded()} <= {one.name for one in MUTATIONS}


@pytest.mark.thorough
@pytest.mark.parametrize("mutation", [one for one in MUTATIONS if one.name in recorded()], ids=lambda one: one.name)
def test_a_night_finds_the_fault_again(mutation: Mutation) -> None:
    """Most are found by the night that found them the last time; after a change of the product, by one of the next."""
    assert seed_that_finds(mutation, NIGHTS, recorded()[mutation.name]), mutation.name
