# The first process of a cluster's process namespace: starts the hosts named by its arguments, and waits until whoever
# holds the other end of its standard input lets go or is gone; then nothing shall be left. $FOLDER is the directory,
# $CGROUP the cgroup that holds a cgroup for each host.

# A shell's background jobs ignore Ctrl-C, and so would, by inheritance, all that sshd starts: hence env.
here=$(dirname "$0")
for name; do
  env --default-signal=INT,QUIT \
    unshare --net --mount --uts --ipc --pid --kill-child sh "$here/host.sh" "$name" </dev/null &
done

# /proc is still the outside's, so this is our process id there.
read -r pid rest </proc/self/stat
echo "$pid" >"$FOLDER/fabric.pid"

read -r _

# Kills also what is frozen. The kernel needs a moment to take it apart.
echo 1 >"$CGROUP/cgroup.kill"
for try in $(seq 1000); do
  rmdir "$CGROUP"/*/ "$CGROUP" && rm -rf "$FOLDER" && exit
  sleep 0.01
done 2>/dev/null
