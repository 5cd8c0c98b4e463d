#!/usr/bin/env bash
# environments/packages.sh [full]: installs Debian's packages without which some tests are skipped, as root. Hosts of
# tests/cluster have a real sshd; with "full", for make test-full, also a real Slurm, pages are seen in a real browser,
# commands completed in real shells, images built and run, and Spark has a Java. Where packages cannot be installed it
# says so, and the tests say which.
set -euo pipefail

packages=(iproute2 openssh-client openssh-server util-linux)
if [[ ${1:-} == full ]]; then
  packages+=(slurm-client slurmctld slurmd chromium bash-completion zsh fish groff man-db mandoc podman runc mmdebstrap
    openjdk-17-jre-headless)
fi
if dpkg --status "${packages[@]}" >/dev/null 2>&1; then
  exit
fi
if ((EUID != 0)) || ! command -v apt-get >/dev/null; then
  echo "packages.sh: not root on a Debian; some of these are missing: ${packages[*]}"
  exit
fi
echo "packages.sh: installing ${packages[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq || echo "packages.sh: apt-get update failed; the lists that are there may do" >&2
apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null ||
  echo "packages.sh: they could not be installed; the tests that need them will say which" >&2
