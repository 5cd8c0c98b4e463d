#!/usr/bin/env bash
# Makes the tables of benchmarks/results, one after the other; `all.sh NAME …` makes some. What a benchmark prints goes
# to NAME.txt there, and a picture to NAME.png. Every single time goes to build/benchmarks/NAME.json, which git ignores.
# Called by `make bench`, which prepares the environments. What is measured: docs/benchmarks.md.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bin=${BIN:-.venv/bin}
results=benchmarks/results
raw=build/benchmarks
wanted=("$@")
failed=()
mkdir -p "$raw"

run() { # NAME, then a command that takes --json
  local name=$1 begin=$SECONDS
  shift
  if ((${#wanted[@]})) && [[ " ${wanted[*]} " != *" $name "* ]]; then return; fi
  if [[ " $* " == *" targets "* || " $* " == *" --hosts "* ]] && ((EUID != 0)); then
    echo "==> $name left out: several hosts on one machine need root" >&2
    return
  fi
  echo "==> $name: $*"
  if "$@" --json "$raw/$name.json" >"$raw/$name.txt"; then mv "$raw/$name.txt" "$results/$name.txt"; else failed+=("$name"); fi
  echo "==> $name took $((SECONDS - begin)) s"
}

table() { # NAME, then what follows `python -m benchmarks`
  run "$1" "$bin/python" -m benchmarks "${@:2}"
}

drawn() { # the same, with a picture
  table "$@" --plot "$results/$1.png"
}

middle=8,64K,256K,1M,4M,32M
hosts=ddl,ddl-bf16wire,openmpi,mpich,gloo,limit

drawn allreduce-2 allreduce
drawn allreduce-4 allreduce --ranks 4 --sizes $middle
drawn allreduce-2-bfloat16 allreduce --dtype bfloat16 --sizes $middle,128M
drawn allreduce-2-float16 allreduce --dtype float16 --sizes $middle,128M
drawn reducescatter-2 reducescatter --sizes $middle
drawn allgather-2 allgather --sizes $middle
drawn broadcast-2 broadcast --sizes $middle
drawn hosts allreduce --hosts 2 --contestants $hosts --sizes $middle,128M
drawn hosts-1gbit allreduce --hosts 2 --rate 1gbit --contestants $hosts,ddl-computing --sizes 8,64K,1M,4M,32M --rounds 2
table waking waking
drawn training training --rounds 2
run tensorflow-2 "$bin/ddlrun" --no-prefix -np 2 "$bin/python" -m benchmarks.frameworks.tensorflow_strategy
run jax-2 "$bin/python" -m benchmarks.frameworks.jax_collectives
for ranks in 2 4; do # MPI's own mpiexec starts them, so that MPI can take part
  run "torch-$ranks" env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 .venv-openmpi/bin/mpiexec -n "$ranks" \
    --oversubscribe --bind-to none "$bin/python" -W ignore -m benchmarks.frameworks.torch_backend --mpi .venv-openmpi
done
run chainer-2 .venv-chainer/bin/python -m benchmarks.frameworks.chainer_naive
table targets targets --document docs/targets.md

if ((${#failed[@]})); then
  echo "==> failed: ${failed[*]}; what they printed is in $raw" >&2
  exit 1
fi
