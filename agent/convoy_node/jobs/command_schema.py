# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The schema of a command's arguments: a strict, small part of JSON Schema. No IO.

A keyword that is not known refuses the command, because an argument could get past a limit that its author wrote.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..machine.errors import sanitize
from .refusals import Refused

# Seconds that a command may take, if its schema does not say.
TIMEOUT = 600
_MOST_SECONDS = 86400
# Characters of a text argument and items of a list, if the schema does not say.
_MOST_LENGTH = 1000
_MOST_ITEMS = 100
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}", re.ASCII)
_KINDS: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
}
_OF_ALL = ("type", "description", "enum")
_KEYWORDS: Mapping[str, tuple[str, ...]] = {
    "string": (*_OF_ALL, "minLength", "maxLength", "pattern"),
    "integer": (*_OF_ALL, "minimum", "maximum"),
    "number": (*_OF_ALL, "minimum", "maximum"),
    "boolean": _OF_ALL,
    "array": (*_OF_ALL, "items", "minItems", "maxItems"),
}
_TOP = ("description", "timeout", "repeatable", "type", "properties", "required", "additionalProperties")
# Integers beyond these lose digits in other programs that read JSON.
_MOST_NUMBER = 2**53
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems")


@dataclass(frozen=True)
class CommandSchema:
    """What a command takes, and how it runs.

    :param arguments: name -> its schema.
    :param timeout: how long it may take (seconds).
    :param is_repeatable: whether it may run again on a node where it failed, or where its result is unknown.
    """

    arguments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    timeout: float = TIMEOUT
    is_repeatable: bool = False
    description: str = ""


def parse_schema(name: str, content: bytes) -> CommandSchema:
    """Return a schema.

    :param name: the path of its file, for messages.
    :raises Refused: if any part of it is not known or has a wrong value.
    """
    try:
        data = json.loads(content, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise Refused(f"{name} can't be used: it is not JSON ({sanitize(str(error), 200)}). Correct it.") from None
    if not isinstance(data, dict):
        raise _bad(name, "it is not an object")
    _refuse_unknown(name, "", data, _TOP)
    if data.get("type", "object") != "object" or data.get("additionalProperties", False) is not False:
        raise _bad(name, "type has to be object, and additionalProperties false")
    timeout, repeatable = data.get("timeout", TIMEOUT), data.get("repeatable", False)
    if not _is_number(timeout) or not 0 < timeout <= _MOST_SECONDS:
        raise _bad(name, f"timeout is {_sanitized(timeout)}; give seconds above 0, up to {_MOST_SECONDS}")
    if not isinstance(repeatable, bool):
        raise _bad(name, f"repeatable is {_sanitized(repeatable)}; give true or false")
    found, required = data.get("properties", {}), data.get("required", [])
    if not isinstance(found, dict):
        raise _bad(name, "properties is not an object")
    for argument, schema in found.items():
        if not _NAME.fullmatch(argument):
            raise _bad(name, f"{_sanitized(argument)} can't be an argument; give lowercase letters, digits and _")
        _check_schema(name, f"properties.{argument}", schema)
    if not isinstance(required, list) or any(not isinstance(one, str) or one not in found for one in required):
        raise _bad(name, f"required is {_sanitized(required)}; give a list of names in properties")
    return CommandSchema(found, tuple(required), float(timeout), repeatable, str(data.get("description", "")))


def check_arguments(schema: CommandSchema, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that a schema does not allow.

    :raises Refused: for the first that it does not allow.
    """
    for name in arguments:
        if name not in schema.arguments:
            close = difflib.get_close_matches(name, schema.arguments, n=1)
            known = f"; did you mean {close[0]}?" if close else f"; it takes {', '.join(schema.arguments) or 'none'}."
            raise Refused(f"The argument {_sanitized(name)} is not one of this command{known} Begin a job without it.")
    for name in schema.required:
        if name not in arguments:
            raise Refused(f"The argument {name} is missing. Begin a job with it.")
    for name, value in arguments.items():
        problem = _misfit(schema.arguments[name], value)
        if problem:
            raise Refused(f"The argument {name} is {_sanitized(value)}; {problem}. Begin a job with a value that fits.")


def _check_schema(file: str, place: str, schema: Any, is_item: bool = False) -> None:
    if not isinstance(schema, dict):
        raise _bad(file, f"{place} is not an object")
    kind = schema.get("type")
    kinds = [one for one in _KINDS if not (is_item and one == "array")]
    if kind not in kinds:
        raise _bad(file, f"{place}.type is {_sanitized(kind)}; give one of {', '.join(kinds)}")
    _refuse_unknown(file, place, schema, _KEYWORDS[kind])
    for name in _COUNTS:
        if name in schema and not (_is_whole(schema[name]) and schema[name] >= 0):
            raise _bad(file, f"{place}.{name} is {_sanitized(schema[name])}; give a whole number from 0")
    for name in ("minimum", "maximum"):
        if name in schema and not _is_number(schema[name]):
            raise _bad(file, f"{place}.{name} is {_sanitized(schema[name])}; give a number")
    if "pattern" in schema:
        _check_pattern(file, place, schema["pattern"])
    if "items" in schema:
        _check_schema(file, f"{place}.items", schema["items"], is_item=True)
    elif kind == "array":
        raise _bad(file, f"{place}.items is missing; give the schema of an item")
    if "enum" in schema and not (isinstance(schema["enum"], list) and schema["enum"]):
        raise _bad(file, f"{place}.enum is {_sanitized(schema['enum'])}; give a list of values")


def _check_pattern(file: str, place: str, pattern: Any) -> None:
    if not (isinstance(pattern, str) and pattern.startswith("^") and pattern.endswith("$")):
        raise _bad(
            file, f"{place}.pattern is {_sanitized(pattern)}; give one from ^ to $, so that it holds for the whole text"
        )
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise _bad(file, f"{place}.pattern is {_sanitized(pattern)}: {sanitize(str(error), 100)}") from None


def _misfit(schema: Mapping[str, Any], value: Any) -> str:
    """Return what a schema asks of a value that does not fit; empty if it fits."""
    kind = schema["type"]
    fits = isinstance(value, _KINDS[kind]) and isinstance(value, bool) == (kind == "boolean")
    if not fits:
        return f"give {'an' if kind[0] in 'ai' else 'a'} {kind}"
    if "enum" in schema and not any(type(one) is type(value) and one == value for one in schema["enum"]):
        return f"give one of {_sanitized(schema['enum'])}"
    if kind == "string":
        return _misfit_text(schema, value)
    if kind in ("integer", "number"):
        return _misfit_number(schema, value)
    if kind == "array":
        least, most = schema.get("minItems", 0), schema.get("maxItems", _MOST_ITEMS)
        if not least <= len(value) <= most:
            return f"give {least} to {most} items"
        return next(filter(None, (_misfit(schema["items"], one) for one in value)), "")
    return ""


def _misfit_text(schema: Mapping[str, Any], text: str) -> str:
    least, most = schema.get("minLength", 0), schema.get("maxLength", _MOST_LENGTH)
    if not least <= len(text) <= most:
        return f"give {least} to {most} characters"
    if any((ord(one) < 32 and one not in "\t\n") or 0xD800 <= ord(one) < 0xE000 for one in text):
        return "give text without control characters"
    if "pattern" in schema and not re.fullmatch(schema["pattern"], text):
        return f"give text that fits {schema['pattern']}"
    return ""


def _misfit_number(schema: Mapping[str, Any], value: Any) -> str:
    if not _is_number(value):
        return f"give a number from {-_MOST_NUMBER} to {_MOST_NUMBER}"
    if "minimum" in schema and value < schema["minimum"]:
        return f"give at least {schema['minimum']}"
    if "maximum" in schema and value > schema["maximum"]:
        return f"give at most {schema['maximum']}"
    return ""


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    # What is not a number, and infinity, fails both comparisons.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -_MOST_NUMBER <= value <= _MOST_NUMBER


def _refuse_unknown(file: str, place: str, data: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for name in data:
        if name not in known:
            where = f"{place}.{name}" if place else name
            raise _bad(file, f"{_sanitized(where)} is not known here; {', '.join(known)} are")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is there twice")
    return found


def _sanitized(value: Any) -> str:
    return sanitize(json.dumps(value), 100)


def _bad(file: str, problem: str) -> Refused:
    return Refused(f"{file} can't be used: {problem}. Correct it on this node.")
