#!/usr/bin/env bash
# Makes the tables of benchmarks/results, one after the other: NAME.json and NAME.png (but for waking, targets, tensorflow-2 and chainer-2) each. `all.sh NAME …` makes some.
# Called by `make bench`, which prepares the environments. What is measured: docs/benchmarks.md.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

ddl=${DDL:-.venv/bin/ddl}
wanted=("$@")
failed=()

unwanted() { # NAME
  ((${#wanted[@]})) && [[ " ${wanted[*]} " != *" $1 "* ]]
}

table() { # NAME, then what follows `ddl bench`
  local name=$1 begin=$SECONDS
  shift
  if unwanted "$name"; then return; fi
  if [[ ($1 == targets || " $* " == *" --hosts "*) && $EUID != 0 ]]; then
    echo "==> $name left out: several hosts on one machine need root" >&2
    return
  fi
  echo "==> $name: ddl bench $*"
  local plot=(--plot "benchmarks/results/$name.png")
  if [[ $1 == waking || $1 == targets ]]; then plot=(); fi
  "$ddl" bench "$@" --json "benchmarks/results/$name.json" "${plot[@]}" || failed+=("$name")
  echo "==> $name took $((SECONDS - begin)) s"
}

program() { # NAME, then a command that takes --json
  local name=$1 begin=$SECONDS
  shift
  if unwanted "$name"; then return; fi
  echo "==> $name: $*"
  "$@" --json "benchmarks/results/$name.json" || failed+=("$name")
  echo "==> $name took $((SECONDS - begin)) s"
}

middle=8,64K,256K,1M,4M,32M
hosts=ddl,ddl-bf16wire,openmpi,mpich,gloo,limit

table allreduce-2 allreduce
table allreduce-4 allreduce --ranks 4 --sizes $middle
table allreduce-2-bfloat16 allreduce --dtype bfloat16 --sizes $middle,128M
table allreduce-2-float16 allreduce --dtype float16 --sizes $middle,128M
table reducescatter-2 reducescatter --sizes $middle
table allgather-2 allgather --sizes $middle
table broadcast-2 broadcast --sizes $middle
table hosts allreduce --hosts 2 --contestants $hosts --sizes $middle,128M
table hosts-1gbit allreduce --hosts 2 --rate 1gbit --contestants $hosts,ddl-computing --sizes 8,64K,1M,4M,32M --rounds 2
table waking waking
table training training --rounds 2
program tensorflow-2 "${ddl}run" --no-prefix -np 2 benchmarks/tensorflow_strategy.py
program chainer-2 .venv-chainer/bin/python benchmarks/chainer_naive.py
table targets targets --document docs/targets.md

if ((${#failed[@]})); then
  echo "==> failed: ${failed[*]}" >&2
  exit 1
fi
