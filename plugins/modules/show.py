# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin that prints lines."""

from __future__ import annotations

DOCUMENTATION = r"""
module: show
short_description: Print lines of text without formatting
version_added: 0.1.0
description:
  - Prints lines without the quotes and brackets of M(ansible.builtin.debug), so that tables stay readable.
author: The convoy.upgrade authors (@convoy-upgrade)
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
    details: The module changes nothing.
  platform:
    platforms: all
    support: full
options:
  lines:
    description:
      - Lines to print.
    type: list
    elements: str
    required: true
notes:
  - It runs only on the control node, without a connection to a host.
"""

EXAMPLES = r"""
- name: Show a table
  convoy.upgrade.show:
    lines:
      - role        hosts
      - controller      3
"""

RETURN = r"""
lines:
  description: The lines that were printed.
  returned: always
  type: list
  elements: str
"""
