#!/usr/bin/env bash
# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# parts.sh PACKAGE...: prints the path of a tar file with all that the packages add to this machine's root file system.
# They are installed into an overlay that only this script sees, so nothing is installed or started on the machine.
# The file is kept in .cache/lab, and made again when the machine's own packages have changed or its sources have others
# than before. The few that were used last are kept, so that labs of different packages don't have to make theirs again
# and again.
set -euo pipefail
cd "$(dirname "$0")/../.."

die() { printf 'lab: %s\n' "$*" >&2; exit 1; }

[ "$(id -u)" = 0 ] || die "making the parts of the nodes needs root."
command -v apt-get >/dev/null || die "the nodes' packages ($*) come from apt, and this machine has none."
mkdir -p .cache/lab
# Two labs may want it at the same time.
exec 9>.cache/lab/lock
flock 9
lists=$(tests/lab/lists.sh)
candidates=$(apt-cache -o Dir::State::lists="$lists" -o Dir::Cache::pkgcache= policy "$@" | grep Candidate:) || true
key=$(cat /var/lib/dpkg/status <(echo "$@" "$candidates") "$0" | sha256sum | cut -c1-16)
parts=$PWD/.cache/lab/parts-$key.tar
kept=8
if [ -s "$parts" ]; then touch "$parts"; echo "$parts"; exit; fi
rm -f .cache/lab/parts-*.new
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
# All of it in a mount namespace, which goes with the process, however that ends.
cat >"$work/install" <<'END'
set -eu
mkdir "$1/tree"
cd "$1/tree"
lists=$2 parts=$3
shift 3
mount -t tmpfs -o mode=755 convoy-lab .
cd "$PWD"
mkdir upper work root
top=$PWD
mount -t overlay overlay -o lowerdir=/,upperdir=upper,workdir=work root
cd root
mount -t proc proc proc
mount -t sysfs sys sys
mount --rbind /dev dev
mount -t tmpfs tmpfs tmp
mkdir -p run
mount -t tmpfs tmpfs run
# Debian's way to say that no service is to be started.
printf '#!/bin/sh\nexit 101\n' >usr/sbin/policy-rc.d
chmod 755 usr/sbin/policy-rc.d
export DEBIAN_FRONTEND=noninteractive
mount --bind "$lists" var/lib/apt/lists
chroot . apt-get -q -y -o Dpkg::Use-Pty=0 install --no-install-recommends "$@"
rm usr/sbin/policy-rc.d
chroot . apt-get clean
cd "$top"
umount -l root
rm -rf upper/var/lib/apt/lists upper/var/cache/apt
# The folders of logs stay: they have their owners, and a service may not start without its own.
find upper/var/log -type f -delete
tar -C upper --xattrs --xattrs-include='trusted.*' -cf "$parts" .
END
env --unset=TMPDIR unshare --mount --propagation private sh "$work/install" "$work" "$lists" "$parts.new" "$@" >"$work/log" 2>&1 ||
    { tail -n 40 "$work/log" >&2; die "apt could not install $*."; }
mv "$parts.new" "$parts"
# shellcheck disable=SC2012  the names are our own
ls -t .cache/lab/parts-*.tar | tail -n +$((kept + 1)) | xargs -r rm -f
echo "$parts"
