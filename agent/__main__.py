# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command convoy-node: ``python agent COMMAND``."""

import sys

from convoy_node.command_line import main
from convoy_node.machine.output import make_output_optional

if __name__ == "__main__":
    make_output_optional()
    sys.exit(main(sys.argv[1:]))
