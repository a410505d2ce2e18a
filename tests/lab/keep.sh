#!/bin/sh
# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# keep.sh NODE COMMAND...: what a node's power supply and firmware are to a host. Runs the command, which has the node's
# first process as its child, and runs it again whenever the node has rebooted itself. It ends when the node is shut down
# or killed. NODE is the node's folder; the file "pid" in it has the number of the command that runs.
node=$1
shift
while :; do
    # The shell has what runs in the background ignore some signals; a node does not.
    env --default-signal "$@" &
    echo $! >"$node/pid.new"
    mv "$node/pid.new" "$node/pid"
    wait $!
    # A process namespace in which someone called reboot(2) ends with SIGHUP for a restart, with SIGINT for a halt.
    [ $? = 129 ] || exit 0
done
