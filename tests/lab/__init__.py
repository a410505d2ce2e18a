# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A lab: many hosts on one machine, each with its own name, network, files, processes, systemd, sshd and Consul agent.

No containers and no images: a node is a network namespace on a bridge, and an overlay of this machine's root file
system with namespaces of its own. It needs root, and leaves nothing when it is taken down.
"""
