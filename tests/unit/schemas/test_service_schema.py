# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The schema of ``meta/upgrade.yml`` accepts what the composer accepts of a service with such a file."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.plugin_utils._services.meta import KEYS
from ansible_collections.convoy.upgrade.plugins.plugin_utils._services.service import load_service
from devkit.agent import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft7Validator
from written_services import META, POST, TASKS, Roles

SCHEMA = json.loads((ROOT / "schemas/upgrade.json").read_text())
VALIDATOR = Draft7Validator(SCHEMA)
STEPS = ("prepare", "stop", "upgrade", "start", "verify")

# What no schema can find, in the text of the refusal.
BEYOND = (
    "can't be compared",
    "does not exist",
    "is not in the list of",
    "a control character",
    "listed twice, in two spellings",
)
VERSIONS = ("2.4", "2.6", "2.10")
ODD = st.sampled_from(
    (None, True, False, 0, 3, 2.1, "", "x", "stop", "step1", "step03", "step0", "step6", "step_2", "Step1", "validate",
     "post_upgrade", "once", [], {}, [""], ["stop", "step2"], ["post_upgrade"], ["stop", 2], ["validate"], ["a.b.c", "d"],
     {"a": "b"}, "2.4", " 2.4 ", ">=2.4", ">= 2.4, <2.10", ">=2.4,", ">>2.4", "*", " * ", "*, 2.4", "true", "a/b",
     ["2.4"], ["2.4", "2.6"], ["2.4", "2.4"], ["2.4", 2.6], ["TRUE"], [">=2.4", "<2.4"], ["*"], [[]],
     {"2.4": "upgrade_to/2.4.yml"}, {"2.4": "/x"}, {"2.4": "../x"}, {"2.4": "upgrade_to/../x"}, {"2.4": ""},
     {"2.4": ">=2.4"}, {"2.10": ["2.4", "2.6"]}, {"*": []}, {"": "2.4"}, {"a/b": "x"}, {"2.10": "2.x"})
)  # fmt: skip
KEYS_OR_TYPOS = st.sampled_from((*KEYS, "requirs", "Once"))
FILES = st.one_of(
    st.none(),
    st.dictionaries(KEYS_OR_TYPOS, ODD, max_size=3),
    st.sampled_from(([], ["requires"], "requires", 3)),
)


CHECKPOINTS = {f"tasks/upgrade_to/{version}.yml": "- name: go\n  command: x\n" for version in VERSIONS}


def refusal(meta: Any) -> str:
    """Return the composer's error for a service that has a task in every step, an empty text if it accepts it."""
    tasks = "".join(f"- name: {step}\n  command: x\n  tags: {step}\n" for step in STEPS)
    with tempfile.TemporaryDirectory() as folder:
        roles = Roles(Path(folder))
        roles.add(
            "web", {TASKS: tasks, POST: "- name: after\n  command: x\n", META: yaml.safe_dump(meta), **CHECKPOINTS}
        )
        try:
            load_service("web", roles, "w", [folder])
        except UpgradeError as error:
            return error.message
    return ""


def test_the_schema_is_one() -> None:
    Draft7Validator.check_schema(SCHEMA)
    assert set(SCHEMA["properties"]) == set(KEYS)


@settings(max_examples=200)
@given(FILES)
def test_the_schema_refuses_what_the_composer_refuses_and_nothing_else(meta: Any) -> None:
    refused = refusal(meta)

    # An empty list and the like are read as an empty file.
    if VALIDATOR.is_valid(meta or None):
        assert not refused or any(sentence in refused for sentence in BEYOND), refused
    else:
        assert refused, "the schema alone refuses it"


def test_the_services_of_the_collection_fit() -> None:
    files = sorted(ROOT.glob("roles/*/meta/upgrade.yml"))

    assert len(files) > 5
    assert [file for file in files if not VALIDATOR.is_valid(yaml.safe_load(file.read_text()))] == []
