#!/bin/sh
# enter.sh ROOT MACHINE FROM:TO... -- COMMAND...: runs a command in the system at ROOT, in which FROM is at TO. The
# caller has made a user, a mount and a PID namespace: what is mounted here ends with the command.
set -eu

root=$1 machine=$2
shift 2
if [ "$machine" != "$(uname -m)" ]; then
  # qemu starts the programs for another processor, also those that other programs start. Only in this user namespace,
  # which takes Linux 6.7.
  mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
  [ "$machine" = aarch64 ] # the next line is for no other
  printf '%s' ':qemu:M:0:\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:/usr/bin/qemu-aarch64-static:F' \
    >/proc/sys/fs/binfmt_misc/register
fi
ip link set lo up
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
mount -t tmpfs tmpfs "$root/tmp"
while [ "$1" != -- ]; do
  mkdir -p "$root${1#*:}"
  mount --rbind "${1%%:*}" "$root${1#*:}"
  shift
done
shift
exec chroot "$root" /usr/bin/env -i PATH=/usr/bin:/bin HOME=/tmp "$@"
