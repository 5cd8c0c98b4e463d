#!/usr/bin/env bash
# environments/touched.sh FRAMEWORK: whether its tests are likely to be broken by what this checkout changes: its adapter,
# its tests, what adapters stand on, or the core. Compared with the branch that this one follows, else with the commit
# before. Status 0: yes, also where git cannot tell; 1: no.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

base=$(git merge-base HEAD '@{upstream}' 2>/dev/null) || base=$(git rev-parse --quiet --verify 'HEAD~1') || exit 0
[ "$base" != "$(git rev-parse HEAD)" ] || base=$(git rev-parse --quiet --verify 'HEAD~1') || exit 0
paths=("ddl_$1" "tests/$1" ddl/adapter ddl/_comm ddl/memory.py csrc environments)
! git diff --quiet "$base" -- "${paths[@]}" || [ -n "$(git ls-files --others --exclude-standard -- "${paths[@]}")" ]
