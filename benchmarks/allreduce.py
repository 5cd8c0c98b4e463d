"""All-reduce on this machine against what else one could pick: Open MPI, MPICH and gloo. ``make bench`` runs it.

Every round starts each contestant anew, one after the other, so that a slow minute hits all of them. The table has the
median over all calls of all rounds, and how many times faster DDL (buffers from ``ddl.empty``) is than the best peer.
Exits with 1 on a wrong value.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Dict, List

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
CONTESTANTS = ("ddl", "ddl-private", "openmpi", "mpich", "gloo")
PEERS = ("openmpi", "mpich", "gloo")
SIZES = (8, 1 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 32 << 20, 128 << 20)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def command(contestant: str, ranks: int, arguments: List[str]) -> List[str]:
    """Return the command line that starts a contestant with its own launcher."""
    arguments = [str(HERE / "contestant.py"), *arguments]
    if contestant in ("openmpi", "mpich"):
        binaries = ROOT / f".venv-{contestant}" / "bin"
        more = ["--oversubscribe"] if contestant == "openmpi" else []
        return [str(binaries / "mpiexec"), "-n", str(ranks), *more, str(binaries / "python"), *arguments, "mpi"]
    return [sys.executable, "-m", "ddl.run", "-np", str(ranks), "--no-prefix", *arguments, contestant]


def run(contestant: str, ranks: int, sizes: str, seconds: float) -> Dict[str, List[float]]:
    """Return the seconds of each call, by size."""
    environment = dict(os.environ, OMP_NUM_THREADS="1", BENCH_PORT=str(free_port()))
    environment.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "seconds.json"
        line = command(contestant, ranks, ["--sizes", sizes, "--seconds", str(seconds), "--output", str(output)])
        ended = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=900)
        if ended.returncode != 0:
            sys.exit(f"{contestant} ended with status {ended.returncode}:\n{ended.stdout}{ended.stderr}")
        times: Dict[str, List[float]] = json.loads(output.read_text())
    return times


def readable(nbytes: int) -> str:
    for unit, shift in (("MiB", 20), ("KiB", 10)):
        if nbytes >= 1 << shift:
            return f"{nbytes >> shift} {unit}"
    return f"{nbytes} B"


def table(medians: Dict[str, Dict[int, float]], sizes: List[int]) -> str:
    names = [name for name in CONTESTANTS if name in medians]
    peers = [name for name in PEERS if name in medians]
    lines = [f"{'bytes':>8}" + "".join(f"{name:>14}" for name in names) + f"{'best peer / ddl':>18}"]
    for nbytes in sizes:
        row = f"{readable(nbytes):>8}" + "".join(f"{medians[name][nbytes] * 1e6:>11.1f} us" for name in names)
        if peers and "ddl" in medians:
            row += f"{min(medians[name][nbytes] for name in peers) / medians['ddl'][nbytes]:>16.2f} x"
        lines.append(row)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.3, help="about how long to time each size in each round")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="bytes, separated by commas")
    parser.add_argument("--contestants", default=",".join(CONTESTANTS))
    parser.add_argument("--json", type=Path, help="write medians, machine and command there")
    arguments = parser.parse_args()
    sizes = [int(text) for text in arguments.sizes.split(",")]
    names = arguments.contestants.split(",")
    collected: Dict[str, Dict[int, List[float]]] = {name: {nbytes: [] for nbytes in sizes} for name in names}
    for number in range(arguments.rounds):
        for name in names:
            print(f"round {number + 1}/{arguments.rounds}: {name}", file=sys.stderr)
            for text, times in run(name, arguments.ranks, arguments.sizes, arguments.seconds).items():
                collected[name][int(text)] += times
    medians = {
        name: {nbytes: statistics.median(times) for nbytes, times in of_size.items()}
        for name, of_size in collected.items()
    }
    print(f"all-reduce, float32 sum, in place, {arguments.ranks} ranks on {os.cpu_count()} cores; medians")
    print(table(medians, sizes))
    if arguments.json:
        facts = {"command": sys.argv, "machine": platform.platform(), "cores": os.cpu_count(), "seconds": medians}
        arguments.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
