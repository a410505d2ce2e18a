# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Configuration of Sphinx for the site. See build.sh."""

from __future__ import annotations

import re

from docutils import nodes
from docutils.nodes import Element, TextElement
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

project = "convoy.upgrade"
author = "The convoy.upgrade authors"
copyright = f"2026, {author}"

extensions = ["myst_parser", "sphinx_antsibull_ext"]
exclude_patterns = ["docs/alerts.yml", "docs/awx.yml", "docs/grafana.json", "schemas"]

# Anchors of headings as in other renderers of Markdown.
myst_heading_anchors = 4

html_theme = "furo"
html_title = project
html_show_sphinx = False
html_copy_source = False
pygments_style = "ansible"

# References to Ansible link to Ansible's own site. intersphinx would need to download an inventory.
_ANSIBLE = "https://docs.ansible.com/ansible/latest"
_LABELS = {
    "action_plugins": "plugins/action.html",
    "ansible_configuration_settings": "reference_appendices/config.html",
    "callback_plugins": "plugins/callback.html",
    "common_return_values": "reference_appendices/common_return_values.html",
}
_BUILTIN = re.compile(r"ansible_collections\.ansible\.builtin\.(\w+)")
_VARIABLES_OF_ANSIBLE = re.compile(r"ANSIBLE_(STDOUT_CALLBACK|CACHE_PLUGIN\w*|INVENTORY_ANY_UNPARSED_IS_FAILED)")
nitpick_ignore = [("envvar", "NO_COLOR")]


def _of_ansible(_app: Sphinx, _env: BuildEnvironment, node: Element, content: TextElement) -> nodes.reference | None:
    """Return a link to Ansible's documentation, or None if the target is not documented there."""
    target = node["reftarget"]
    if target in _LABELS:
        page = _LABELS[target]
    elif builtin := _BUILTIN.fullmatch(target):
        page = f"collections/ansible/builtin/{builtin[1]}.html"
    elif node["reftype"] == "envvar" and _VARIABLES_OF_ANSIBLE.fullmatch(target):
        page = f"reference_appendices/config.html#envvar-{target}"
    else:
        return None
    return nodes.reference("", "", content, internal=False, refuri=f"{_ANSIBLE}/{page}")


def setup(app: Sphinx) -> None:
    """Register the resolver of links."""
    app.connect("missing-reference", _of_ansible)
