#!/usr/bin/env bash
# environments/touched.sh FRAMEWORK: tests whether this checkout changes what the framework's tests depend on: its
# adapter, its tests, the modules that adapters use, or the core. It compares with the upstream branch. Status 0: it
# does, or git cannot tell, as in a fresh clone, where the upstream branch has the change already; 1: it does not.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

base=$(git merge-base HEAD '@{upstream}' 2>/dev/null) || exit 0
[ "$base" != "$(git rev-parse HEAD)" ] || exit 0
paths=("ddl_$1" "tests/$1*" ddl/adapter ddl/_comm ddl/memory.py csrc environments)
! git diff --quiet "$base" -- "${paths[@]}" || [ -n "$(git ls-files --others --exclude-standard -- "${paths[@]}")" ]
