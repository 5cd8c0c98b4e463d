# The first process of the host $1, in new namespaces; $FOLDER is the cluster's directory, $CGROUP its cgroup.
set -e
trap '[ -e "$FOLDER/$1.pid" ] || : >"$FOLDER/failed"' EXIT

# Both while the outside's /proc and paths are here: the first line's 0 is this process.
echo 0 >"$CGROUP/$1/cgroup.procs"
read -r pid rest </proc/self/stat

hostname "$1"
ip link set lo up

# Libraries list interfaces in /sys, so it must be of this network; but Slurm needs the cgroups that were in it.
mount -t proc proc /proc
mount --rbind /sys/fs/cgroup "$FOLDER/cgroup"
mount -t sysfs sysfs /sys
mount --move "$FOLDER/cgroup" /sys/fs/cgroup

mount --bind "$FOLDER/hosts" /etc/hosts
mount --bind "$FOLDER/ssh_config.inside" /etc/ssh/ssh_config
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -m 1777 /run/lock
mkdir /run/sshd

# It writes its process id when it listens.
"$SSHD" -f "$FOLDER/sshd_config" -E "$FOLDER/$1.sshd.log"
until [ -s /run/sshd.pid ]; do sleep 0.01; done
echo "$pid" >"$FOLDER/$1.pid"

# A first process inherits orphans; the kernel reaps them for one that ignores their end.
exec env --ignore-signal=CHLD sleep 100000d
