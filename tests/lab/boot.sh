#!/bin/sh
# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# boot.sh NODE LOWER INIT CHECKOUT: becomes the first process of a node. Runs in the node's own namespaces, with
# NODE as its folder (upper, work, root), LOWER the layers below it, and INIT the program to start, in the node.
set -eu
node=$1 lower=$2 init=$3 checkout=$4
cd "$node"
mount -t overlay overlay -o "lowerdir=$lower,upperdir=upper,workdir=work" root
cd root
hostname "$(cat etc/hostname)"
# Debian's own switch. Otherwise each installed package makes the database of manual pages anew.
rm -f var/lib/man-db/auto-update
mkdir -p proc sys dev run tmp srv/lab
mount -t proc proc proc
# Every boot has a number of its own, which distinguishes a reboot from a moment without an answer.
mount -t tmpfs -o mode=755 run run
cat proc/sys/kernel/random/uuid >run/lab-boot-id
mount --bind run/lab-boot-id proc/sys/kernel/random/boot_id
mount -t sysfs sys sys
mount -t cgroup2 cgroup sys/fs/cgroup
mount -t tmpfs -o mode=755 dev dev
for name in null zero full random urandom tty; do
    : >"dev/$name"
    mount --bind "/dev/$name" "dev/$name"
done
# For switches and tunnels in user space.
mkdir dev/net
: >dev/net/tun
[ ! -c /dev/net/tun ] || mount --bind /dev/net/tun dev/net/tun
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 pts dev/pts
mount -t tmpfs shm dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
ln -s /proc/self/fd/0 dev/stdin
ln -s /proc/self/fd/1 dev/stdout
ln -s /proc/self/fd/2 dev/stderr
mount -t tmpfs tmp tmp
# The project itself, to read: it may be on another file system than the root, or below /tmp.
mkdir -p "./$checkout"
mount --bind "$checkout" "./$checkout"
mount -o remount,bind,ro "./$checkout"
# What the tests hand to all nodes, such as package repositories.
mount --bind ../../../shared srv/lab
mkdir -p tmp/old
pivot_root . tmp/old
cd /
umount -l /tmp/old
rmdir /tmp/old
# systemd takes what it is in from this variable; a node has no udev and no hardware, as a container has none.
# shellcheck disable=SC2086  the program brings its arguments
exec env -i container=lab TERM=dumb PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin $init </dev/null
