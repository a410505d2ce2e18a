# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Conditions in playbooks and roles suit all releases of ansible-core.

Those from 2.19 on end a task whose condition is a list or a mapping. Those before 2.19 put it into a Jinja2 ``if``, which takes another one only in
parentheses.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.yaml.loader import AnsibleLoader
from devkit.agent import ROOT
from jinja2 import Environment, TemplateSyntaxError, nodes

FILES = sorted(
    path
    for folder in ("playbooks", "roles")
    for path in (ROOT / folder).rglob("*.yml")
    if path.parts[-2] not in ("meta", "defaults", "group_vars")
)
# `that` is the option of assert.
KEYWORDS = ("when", "failed_when", "changed_when", "until", "that")


def conditions(data: Any) -> Iterator[str]:
    """Yield all conditions below a play, block or task."""
    if isinstance(data, list):
        for one in data:
            yield from conditions(one)
    elif isinstance(data, dict):
        for key, value in data.items():
            if key in KEYWORDS:
                yield from (one for one in (value if isinstance(value, list) else [value]) if isinstance(one, str))
            else:
                yield from conditions(value)


def operands(node: nodes.Node) -> Iterator[nodes.Node]:
    """Yield what a condition may be the value of."""
    if isinstance(node, nodes.And | nodes.Or):
        yield from operands(node.left)
        yield from operands(node.right)
    else:
        yield node


def is_odd(condition: str) -> bool:
    """Return whether a condition may be a list, a mapping or a text, by what a variable has by default."""
    (output,) = Environment(autoescape=True).parse("{{ " + condition + " }}").body
    assert isinstance(output, nodes.Output)
    return any(
        isinstance(one, nodes.Filter)
        and one.name in ("default", "d")
        and bool(one.args)
        and (isinstance(one.args[0], nodes.List | nodes.Dict) or one.args[0] == nodes.Const(""))
        for one in operands(output.nodes[0])
    )


def booleans() -> frozenset[str]:
    """Return the variables of roles that are true or false, by their argument specs."""
    specs = [
        yaml.safe_load(path.read_text())["argument_specs"] for path in ROOT.glob("roles/*/meta/argument_specs.yml")
    ]
    options = [one.get("options") or {} for spec in specs for one in spec.values()]
    return frozenset(name for one in options for name, spec in one.items() if spec.get("type") == "bool")


BOOLEANS = booleans()


def bare_booleans(condition: str) -> list[str]:
    """Return the variables in a condition that are true or false, and may be texts, as no filter converts them."""

    def found(node: nodes.Node) -> Iterator[str]:
        if isinstance(node, nodes.Filter) and node.name == "bool":
            return
        if isinstance(node, nodes.Name) and node.name in BOOLEANS:
            yield node.name
        for child in node.iter_child_nodes():
            yield from found(child)

    return [*found(Environment(autoescape=True).parse("{{ " + condition + " }}"))]


def can_stand_in_if(condition: str) -> bool:
    """Return whether ansible-core 2.17 and 2.18 can evaluate a condition."""
    try:
        Environment(autoescape=True).parse("{% if " + condition + " %}1{% endif %}")
    except TemplateSyntaxError:
        return False
    return True


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_condition_has_a_truth_value(path: Path) -> None:
    data = yaml.load(path.read_text(), Loader=AnsibleLoader)
    assert [one for one in conditions(data) if is_odd(one)] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_condition_can_stand_in_an_if(path: Path) -> None:
    data = yaml.load(path.read_text(), Loader=AnsibleLoader)
    assert [one for one in conditions(data) if not can_stand_in_if(one)] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_decides_is_no_text_where_an_inventory_has_text(path: Path) -> None:
    """``redis_save=false`` in an INI inventory, and ``-e redis_save=false``, are texts, and a text is true."""
    data = yaml.load(path.read_text(), Loader=AnsibleLoader)
    assert [one for one in conditions(data) if bare_booleans(one)] == []


def test_a_boolean_that_may_be_a_text_is_found() -> None:
    assert bare_booleans("redis_save and not ansible_check_mode") == ["redis_save"]
    assert bare_booleans("not (a or redis_save | bool)") == []


def test_a_condition_without_parentheses_is_found() -> None:
    assert not can_stand_in_if("a == b if c else d")
    assert can_stand_in_if("(a == b if c else d)")


def test_a_list_is_found_where_it_decides() -> None:
    assert is_odd("hosts | default([]) and not ansible_check_mode")
    assert is_odd("a or roles | default({})")
    assert is_odd("name | d('')")
    assert not is_odd("hosts | default([]) | length > 0 and 'x' in names | default([])")
    assert not is_odd("once | default(false) | bool")
