# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The schema of a command's arguments: what it allows, and that what it does not know refuses the command."""

from __future__ import annotations

import json
from typing import Any

import pytest
from convoy_node.jobs.command_schema import check_arguments, parse_schema
from convoy_node.jobs.refusals import Refused
from hypothesis import given
from hypothesis import strategies as st

SCHEMA = {
    "description": "Restart a service",
    "timeout": 30,
    "repeatable": True,
    "properties": {
        "service": {"type": "string", "pattern": "^[a-z-]+$", "maxLength": 20},
        "grace": {"type": "integer", "minimum": 0, "maximum": 60},
        "load": {"type": "number", "maximum": 1.5},
        "force": {"type": "boolean"},
        "level": {"type": "string", "enum": ["low", "high"]},
        "disks": {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1, "maxItems": 2},
    },
    "required": ["service"],
}


def parse(**changes: Any) -> Any:
    return parse_schema("/etc/x.json", json.dumps({**SCHEMA, **changes}).encode())


def test_a_schema_says_what_a_command_takes_and_how_it_runs() -> None:
    found = parse()
    assert (found.timeout, found.is_repeatable, found.required) == (30.0, True, ("service",))
    bare = parse_schema("x", b"{}")
    assert (bare.timeout, bare.is_repeatable, dict(bare.arguments)) == (600.0, False, {})


@pytest.mark.parametrize(
    "arguments",
    [
        {"service": "nova"},
        {"service": "nova", "grace": 0, "load": 1, "force": False, "level": "low", "disks": ["sda", "sdb"]},
    ],
)
def test_arguments_that_fit_are_taken(arguments: dict[str, Any]) -> None:
    check_arguments(parse(), arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "The argument service is missing"),
        ({"service": "nova", "gracee": 3}, "did you mean grace?"),
        ({"service": "nova; rm -rf /"}, "give text that fits ^[a-z-]+$"),
        ({"service": "nova\n"}, "give text that fits"),
        ({"service": "a" * 21}, "give 0 to 20 characters"),
        ({"service": 3}, "give a string"),
        ({"service": "nova", "grace": "30"}, "give an integer"),
        ({"service": "nova", "grace": True}, "give an integer"),
        ({"service": "nova", "grace": 1.5}, "give an integer"),
        ({"service": "nova", "grace": -1}, "give at least 0"),
        ({"service": "nova", "grace": 61}, "give at most 60"),
        ({"service": "nova", "grace": 10**30}, "give a number from"),
        ({"service": "nova", "load": float("inf")}, "give a number from"),
        ({"service": "nova", "load": float("nan")}, "give a number from"),
        ({"service": "nova", "force": 1}, "give a boolean"),
        ({"service": "nova", "level": "medium"}, 'give one of ["low", "high"]'),
        ({"service": "nova", "disks": []}, "give 1 to 2 items"),
        ({"service": "nova", "disks": [""]}, "give 1 to 1000 characters"),
        ({"service": "nova", "disks": [["sda"]]}, "give a string"),
        ({"service": "nova", "disks": ["a\x00"]}, "without control characters"),
        ({"service": "nova", "disks": ["\ud800"]}, "without control characters"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused) as error:
        check_arguments(parse(), arguments)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"$ref": "x"}, '"$ref" is not known here'),
        ({"type": "array"}, "type has to be object"),
        ({"additionalProperties": True}, "additionalProperties false"),
        ({"timeout": 0}, "timeout is 0"),
        ({"timeout": 86401}, "up to 86400"),
        ({"repeatable": "yes"}, "give true or false"),
        ({"required": ["other"]}, "give a list of names in properties"),
        ({"required": [["a"]]}, "give a list of names in properties"),
        ({"properties": {"A": {"type": "string"}}, "required": []}, "lowercase letters"),
        ({"properties": {"a": {}}, "required": []}, "properties.a.type is null"),
        ({"properties": {"a": {"type": "object"}}, "required": []}, "give one of string"),
        ({"properties": {"a": {"type": "string", "format": "ipv4"}}, "required": []}, "properties.a.format"),
        ({"properties": {"a": {"type": "integer", "maxLength": 3}}, "required": []}, "properties.a.maxLength"),
        ({"properties": {"a": {"type": "string", "maxLength": -1}}, "required": []}, "a whole number from 0"),
        ({"properties": {"a": {"type": "integer", "minimum": "0"}}, "required": []}, "give a number"),
        ({"properties": {"a": {"type": "string", "pattern": "[a-z]+"}}, "required": []}, "from ^ to $"),
        ({"properties": {"a": {"type": "string", "pattern": "^($"}}, "required": []}, "pattern is"),
        ({"properties": {"a": {"type": "array"}}, "required": []}, "items is missing"),
        ({"properties": {"a": {"type": "array", "items": {"type": "array"}}}, "required": []}, "items.type"),
        ({"properties": {"a": {"type": "string", "enum": []}}, "required": []}, "give a list of values"),
    ],
)
def test_what_a_schema_may_not_say_refuses_the_command(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused) as error:
        parse(**changes)
    assert message in str(error.value)
    assert str(error.value).startswith("/etc/x.json can't be used: ")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"timeout": 1, "timeout": 2}', "[" * 100000])
def test_what_is_no_object_refuses_the_command(text: str) -> None:
    with pytest.raises(Refused):
        parse_schema("x", text.encode())


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*SCHEMA["properties"], "other"]), _JSON))
def test_any_arguments_are_taken_or_refused(arguments: dict[str, Any]) -> None:
    try:
        check_arguments(parse(), arguments)
    except Refused:
        return
    assert set(arguments) <= set(SCHEMA["properties"])
    # What was taken can be an environment variable.
    assert "\x00" not in json.dumps(arguments) and json.dumps(arguments).encode()
