# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Text for the operator, as it is: documentation of the action plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: show
short_description: Show lines of text in the terminal as they are
version_added: 0.1.0
description:
  - Prints lines without the quotes and brackets that M(ansible.builtin.debug) puts around them, so that a table
    looks like one.
author: The convoy.upgrade authors (@convoy-upgrade)
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
    details: Nothing is ever changed.
  platform:
    platforms: all
    support: full
options:
  lines:
    description:
      - The lines.
    type: list
    elements: str
    required: true
notes:
  - It runs on the controller alone, and needs no connection.
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
  description: The lines that were shown.
  returned: always
  type: list
  elements: str
"""
