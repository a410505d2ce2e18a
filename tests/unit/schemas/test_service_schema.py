# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The schema of ``meta/upgrade.yml`` says what the composer says of a service with such a file."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.convoy.upgrade.plugins.module_utils._model.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.plugin_utils._compose.service import load
from devkit.agent import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft7Validator
from written_services import META, POST, TASKS, Roles

SCHEMA = json.loads((ROOT / "schemas/upgrade.json").read_text())
VALIDATOR = Draft7Validator(SCHEMA)
STEPS = ("prepare", "stop", "upgrade", "start", "verify")

ODD = st.sampled_from(
    (None, True, 0, 3, "", "x", "stop", "step1", "step03", "step0", "step6", "step_2", "Step1", "validate", "post_upgrade",
     "once", [], {}, [""], ["stop", "step2"], ["post_upgrade"], ["stop", 2], ["validate"], ["a.b.c", "d"], {"a": "b"})
)  # fmt: skip
FILES = st.one_of(
    st.none(),
    st.dictionaries(st.sampled_from(("requires", "requires", "once", "once", "requirs", "Once")), ODD, max_size=3),
    st.sampled_from(([], ["requires"], "requires", 3)),
)
VERSIONS = st.sampled_from(
    (None, True, False, 2.1, "", "2.4", "true", "a/b", [], ["2.4", "2.10"], ["2.4", "2.4"], ["2.4", 2.6], [""], {}, {"2.4": "a.yml"},
     {"2.4": "/a.yml"}, {"2.4": "../a.yml"}, {"2.4": "x/../a.yml"}, {"2.4": 3}, {"2.6": [">=2.2"]}, {"2.6": []}, [">=2.2, <2.4", "2.4"])
)  # fmt: skip
OF_VERSIONS = st.dictionaries(
    st.sampled_from(("provider", "versions", "allowed_from", "allow_downgrade")), VERSIONS, max_size=1
)
PATHS = st.fixed_dictionaries({"upgrade_path": VERSIONS})


def refusal(meta: Any) -> str:
    """Return what the composer says against a service that has a task in every step, nothing if it takes it."""
    tasks = "".join(f"- name: {step}\n  command: x\n  tags: {step}\n" for step in STEPS)
    with tempfile.TemporaryDirectory() as folder:
        roles = Roles(Path(folder))
        roles.add("web", {TASKS: tasks, POST: "- name: after\n  command: x\n", META: yaml.safe_dump(meta)})
        try:
            load("web", roles, "w", [folder])
        except UpgradeError as error:
            return error.message
    return ""


def test_the_schema_is_one() -> None:
    Draft7Validator.check_schema(SCHEMA)


@settings(max_examples=80)
@given(FILES)
def test_the_schema_refuses_what_the_composer_refuses_and_nothing_else(meta: Any) -> None:
    # An empty list and the like are read as an empty file.
    assert VALIDATOR.is_valid(meta or None) == (not refusal(meta)), refusal(meta) or "the schema alone refuses it"


@settings(max_examples=60)
@given(OF_VERSIONS)
def test_keys_of_versions_fit_where_the_composer_takes_them(meta: Any) -> None:
    told = refusal(meta)
    # Which versions have an order among them is more than a schema can tell.
    assert VALIDATOR.is_valid(meta) == (not told or "can't be compared" in told), told or "the schema alone refuses it"


@settings(max_examples=40)
@given(PATHS)
def test_a_path_fits_where_only_its_files_are_missing(meta: Any) -> None:
    told = refusal(meta)
    assert VALIDATOR.is_valid(meta) == (not told or "is not there" in told), told or "the schema alone refuses it"


def test_the_services_of_the_collection_fit() -> None:
    files = sorted(ROOT.glob("roles/*/meta/upgrade.yml"))

    assert len(files) > 5
    assert [file for file in files if not VALIDATOR.is_valid(yaml.safe_load(file.read_text()))] == []
