# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The node agent: waits for the node's gate in Consul, and starts an agent run when there is something to do.

It needs Python 3.9 or later and nothing else. Ansible and the collection are started only for an agent run.
"""
