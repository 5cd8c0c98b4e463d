"""JAX's collectives on CPUs, served by DDL and by JAX's own gloo, in one run and in turns.

    python -m benchmarks.frameworks.jax_collectives
    python -m benchmarks.frameworks.jax_collectives --ranks 4 --sizes 64K,4M --json j.json

A process of JAX has one or the other, so there are two jobs of ``ddlrun --jax``, which differ in
JAX_CPU_COLLECTIVES_IMPLEMENTATION alone. All compile the same functions. They take turns for each collective and size,
in another order each round; those that are not in turn sleep. A call is timed until its result is there. What counts is
a round's mean on the slowest rank; printed is the median over the rounds, and the ratio. The result of each round is
compared with what numpy makes of the same arrays.

Exit status: 1 if an element is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

from benchmarks import search_path
from benchmarks.machine import describe, facts, say_if_busy
from ddl.text.columns import aligned
from ddl.text.units import duration, exact_bytes_text
from ddl.tools.sizes import parse_sizes

KINDS = {"ddl": "mpi", "gloo": "gloo"}
COLLECTIVES = ("psum", "all_gather", "psum_scatter", "ppermute")
LIMIT = 300.0  #: seconds that a job may take for its start, or for a turn
_CALLS = 20  #: in a turn, for small arrays; fewer for large ones
_LARGE = 32 << 20  #: bytes of all calls of a turn, at most


def functions(size: int) -> Tuple[Any, Dict[str, Callable[[Any], Any]]]:
    """Return how arrays are spread over the processes, and the compiled collectives of such an array."""
    import jax
    import numpy as np
    from jax import lax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()), ("x",))
    rows = PartitionSpec("x")
    ring = [(rank, (rank + 1) % size) for rank in range(size)]
    of_row: Dict[str, Callable[[Any], Any]] = {
        "psum": lambda x: lax.psum(x, "x"),
        "all_gather": lambda x: lax.all_gather(x, "x", tiled=True),
        "psum_scatter": lambda x: lax.psum_scatter(x, "x", tiled=True),
        "ppermute": lambda x: lax.ppermute(x, "x", ring),
    }
    compiled = {
        name: jax.jit(jax.shard_map(function, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False))
        for name, function in of_row.items()
    }
    return NamedSharding(mesh, rows), compiled


def wanted(name: str, rank: int, size: int, own: Any) -> Any:
    """Return what rank ``rank`` gets, where rank r passes ``own + r``."""
    import numpy as np

    every = [own + other for other in range(size)]
    if name == "all_gather":
        return np.concatenate(every)
    if name == "ppermute":
        return every[rank - 1]
    total = sum(every[1:], every[0])
    return total if name == "psum" else np.split(total, size)[rank]


def serve(address: str) -> None:
    """Be a rank: do what is asked, over a socket, until that is closed."""
    import jax

    jax.distributed.initialize()
    import numpy as np

    rank, size = jax.process_index(), jax.process_count()
    sharding, compiled = functions(size)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        stream = connection.makefile("rw", encoding="utf-8")

        def answer(said: Any) -> None:
            stream.write(json.dumps(said) + "\n")
            stream.flush()

        answer([jax.config.jax_cpu_collectives_implementation, rank])
        for line in stream:
            name, count, calls = json.loads(line)
            own = (np.arange(count) % 7).astype(np.float32)  # small whole numbers: every sum is exact
            array = jax.make_array_from_process_local_data(sharding, own + rank)
            result = compiled[name](array).block_until_ready()
            begin = time.perf_counter()
            for _ in range(calls):
                result = compiled[name](array).block_until_ready()
            seconds = (time.perf_counter() - begin) / calls
            right = np.asarray(result.addressable_shards[0].data) == wanted(name, rank, size, own)
            answer([seconds, bool(right.all())])


class JobOfOneKind:
    """The processes that one kind of collectives serves."""

    def __init__(self, kind: str, ranks: int, folder: str) -> None:
        address = os.path.join(folder, kind)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen(ranks)
            listener.settimeout(LIMIT)
            environ = {**os.environ, "PYTHONPATH": search_path(os.environ), "JAX_PLATFORMS": "cpu"}
            environ["JAX_CPU_COLLECTIVES_IMPLEMENTATION"] = KINDS[kind]
            line = [sys.executable, "-m", "ddl.launch", "--jax", "-q", "-np", str(ranks), sys.executable, "-m"]
            line += ["benchmarks.frameworks.jax_collectives", "--serve", address]
            self._process = subprocess.Popen(line, env=environ, stdout=sys.stderr)  # stdout is the table's
            connections = [listener.accept()[0] for _ in range(ranks)]
        for connection in connections:
            connection.settimeout(LIMIT)
        self._streams = [connection.makefile("rw", encoding="utf-8") for connection in connections]
        self._connections = connections
        served_by = {said[0] for said in self._answers()}
        if served_by != {KINDS[kind]}:
            raise RuntimeError(f"{kind}: JAX's collectives are those of {served_by}")

    def turn(self, name: str, count: int, calls: int) -> Tuple[float, bool]:
        """Have all ranks call it; return the slowest rank's mean in seconds, and whether all results are right."""
        for stream in self._streams:
            stream.write(json.dumps([name, count, calls]) + "\n")
            stream.flush()
        answers = self._answers()
        return max(seconds for seconds, _ in answers), all(right for _, right in answers)

    def end(self) -> None:
        for stream, connection in zip(self._streams, self._connections):
            stream.close()
            connection.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait()

    def _answers(self) -> List[Any]:
        lines = [stream.readline() for stream in self._streams]
        if not all(lines):
            raise RuntimeError(f"a job has ended with status {self._process.wait(LIMIT)}")
        return [json.loads(line) for line in lines]


def measure(ranks: int, sizes: List[int], rounds: int) -> Tuple[Dict[str, Dict[str, List[float]]], List[str]]:
    """Return the seconds of each round, by "collective bytes" and kind, and what was wrong."""
    jobs: Dict[str, JobOfOneKind] = {}
    seconds: Dict[str, Dict[str, List[float]]] = {}
    problems: List[str] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for kind in KINDS:
                jobs[kind] = JobOfOneKind(kind, ranks, folder)
            for number in range(rounds + 1):
                order = list(KINDS) if number % 2 else list(KINDS)[::-1]
                for name in COLLECTIVES:
                    for size in sizes:
                        share = ranks if name == "psum_scatter" else 1  # the array is divided by so much
                        count = -(-size // (4 * share)) * share
                        calls = max(1, min(_CALLS, _LARGE // size))
                        for kind in order:
                            taken, right = jobs[kind].turn(name, count, calls)
                            if not right:
                                problems.append(f"{kind}: {name} of {4 * count} bytes is wrong in round {number}")
                            if number > 0:  # the first round compiles
                                by_kind = seconds.setdefault(f"{name} {4 * count}", {kind: [] for kind in KINDS})
                                by_kind[kind].append(taken)
        finally:
            for job in jobs.values():
                job.end()
    return seconds, problems


def table(seconds: Dict[str, Dict[str, List[float]]]) -> List[List[str]]:
    """Return the medians of each collective and size, and DDL's as a part of gloo's."""
    rows = [["collective", "each rank has", *KINDS, "ddl/gloo"]]
    for what, by_kind in seconds.items():
        name, size = what.split()
        medians = {kind: statistics.median(taken) for kind, taken in by_kind.items()}
        ratio = f"{medians['ddl'] / medians['gloo']:.2f}"
        rows.append([name, exact_bytes_text(int(size)), *(duration(medians[kind], 3) for kind in KINDS), ratio])
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=2, help="processes of a job (%(default)s)")
    parser.add_argument("--sizes", default="4,4K,256K,4M,32M", help="bytes of each rank's array (%(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="that count (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's seconds there")
    parser.add_argument("--serve", help=argparse.SUPPRESS)  # of a rank
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return 0
    from importlib.metadata import version

    say_if_busy()
    seconds, problems = measure(options.ranks, parse_sizes(options.sizes), options.rounds)
    machine = facts()
    print(f"{options.ranks} ranks, JAX {version('jax')}, {describe(machine)}")
    print("\n".join([*aligned(table(seconds)), *problems]))
    if options.json:
        record = {"ranks": options.ranks, "jax": version("jax"), "machine": machine, "seconds": seconds}
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
