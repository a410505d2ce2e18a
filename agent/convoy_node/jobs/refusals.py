# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a node refuses a job. The operator reads it in the status of the job."""

from __future__ import annotations


class Refused(Exception):
    """The node does not run a job. The text is one sentence on what is wrong and why, and one with what fixes it."""
