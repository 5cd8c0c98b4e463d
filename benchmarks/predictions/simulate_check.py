"""Compares ``ddl simulate`` with measurements: all-reduces on three layouts of a lab cluster.

The model gets what a look at the links alone shows: latency and bandwidth as ``ddl doctor`` measures them, the token
buckets as they were made, a process's way to another, and how fast memory is copied. No figure is fitted to an
all-reduce. Exit status: 0; 1 if a modelled time is more than 10 % off. Needs root (docs/cluster.md); two minutes.

    python -m benchmarks.predictions.simulate_check --json tests/tuning/measured.json
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np

from benchmarks import ROOT
from benchmarks import machine as this_machine
from ddl._comm.group import discover
from ddl.text.columns import aligned
from ddl.text.units import duration, exact_bytes_text
from ddl.tools.simulate.description import parse
from ddl.tools.sizes import parse_sizes
from ddl.tuning.simulate.simulation import SimulatedOperation, allreduces
from lab import TWO_RACKS, Cluster, Shape, burst_bytes

#: The eight ranks of four hosts keep two cores busy for most of the time, so that layout needs a machine that does
#: nothing else. Slower ports do not help: their buckets hold hardly more than one of the kernel's large packets, which
#: are then cut and, as measured, reordered.
LAYOUTS = {
    "two hosts": Shape(2, rails=(10**9,)),
    "four hosts": Shape(4, slots=2, rails=(10**9,)),
    "two racks": TWO_RACKS,
}
SIZES = "256K,512K,1M,2M,4M,8M,16M,32M"
TOLERANCE = 0.10
#: Ethernet, IP and TCP with time stamps: 1514 bytes carry 1448. So the token buckets count.
WIRE = 1514 / 1448
#: All hosts are on the machine's two cores, which no rank knows: to wait awake takes a working rank's core.
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "DDL_SPIN_US": "0"}


# --- a look at the links ---


def links(cluster: Cluster) -> List[Dict[str, float]]:
    """Return what ``ddl doctor`` finds between each two hosts, three times: latency in s, bandwidth in bits/s."""
    line = [sys.executable, "-m", "ddl.tools", "doctor", "-H", cluster.with_slots(), "--json", "-"]
    measured: List[Dict[str, float]] = []
    for _ in range(3):
        done = cluster.run("node1", line, env=ENVIRONMENT, cwd=ROOT, timeout=100)
        measured += json.loads(done.stdout)["facts"]["links"]
    return measured


def copied_bytes_per_s() -> float:
    """Return the bytes per second that one core reads and writes, of what a cache does not hold."""
    source = np.ones(32 << 20, np.uint8)
    target = np.empty_like(source)
    seconds = []
    for _ in range(5):
        begin = time.perf_counter()
        np.copyto(target, source)
        seconds.append(time.perf_counter() - begin)
    return 2 * source.nbytes / min(seconds)


def way_to_a_process() -> float:
    """Return the seconds from a process to another on this machine that sleeps: half of there and back."""
    (reader, theirs), (back, answer) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        for _ in range(200):
            os.write(answer, os.read(reader, 1))
        os._exit(0)
    seconds = []
    for _ in range(200):
        begin = time.perf_counter()
        os.write(theirs, b".")
        os.read(back, 1)
        seconds.append((time.perf_counter() - begin) / 2)
    os.waitpid(child, 0)
    for end in (reader, theirs, back, answer):
        os.close(end)
    return statistics.median(seconds)


def describe(cluster: Cluster, unshaped_bits_per_s: float) -> Dict[str, Any]:
    """Return the cluster as the topology file of ``ddl simulate`` would have it."""
    shape, seen = cluster.shape, links(cluster)
    content: Dict[str, Any] = {"wire_bytes_per_byte": WIRE, "host": {"ranks": shape.slots}, "network": []}
    if shape.slots > 1:
        content["host"]["memory"] = {"latency_s": way_to_a_process(), "bandwidth_bytes_per_s": copied_bytes_per_s()}
    levels = [("hosts", shape.hosts // shape.racks, shape.rails[0], False)]
    if shape.racks > 1:
        levels.append(("racks", shape.racks, shape.uplink, True))
    for name, size, rate, across in levels:
        chosen = [
            link for link in seen if (shape.rack(int(link["source"])) != shape.rack(int(link["target"]))) == across
        ]
        assert rate is not None
        content["network"].append(
            {
                "name": name,
                "size": size,
                "latency_s": statistics.median(link["latency"] for link in chosen),
                "bandwidth_bytes_per_s": statistics.median(link["bandwidth"] for link in chosen) / 8 * WIRE,
                "burst_bytes": burst_bytes(rate),
                "burst_bytes_per_s": unshaped_bits_per_s / 8 * WIRE,
            }
        )
    return content


# --- all-reduces ---


def measure(cluster: Cluster, wanted: Sequence[int], rounds: int) -> Dict[int, List[float]]:
    """Return for each size how long ``rounds`` all-reduces took, each from the last rank's call to the last's end."""
    shape = cluster.shape
    with tempfile.TemporaryDirectory(prefix="ddl-simulate-") as output:
        program = [sys.executable, "-m", "benchmarks.predictions.simulate_rank"]
        line = [
            sys.executable,
            "-m",
            "ddl.launch",
            "-H",
            cluster.with_slots(),
            *program,
            output,
            ",".join(map(str, wanted)),
            str(rounds),
        ]
        cluster.run("node1", line, env=ENVIRONMENT, cwd=ROOT, timeout=170)
        ranks = [json.loads(Path(output, f"rank.{r}.json").read_text()) for r in range(shape.hosts * shape.slots)]
    calls = {}
    for nbytes in wanted:
        begins, ends = (np.array([rank[str(nbytes)][which] for rank in ranks]) for which in (0, 1))
        calls[nbytes] = [float(seconds) for seconds in ends.max(axis=0) - begins.max(axis=0)]
    return calls


def modelled(content: Dict[str, Any], nbytes: int) -> float:
    """Return the seconds that the model says."""
    machine = parse(content).machine
    return allreduces(machine, discover(machine.hosts()), [SimulatedOperation(nbytes)]).seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layouts", default=",".join(LAYOUTS), help="some of: %(default)s")
    parser.add_argument("--sizes", type=parse_sizes, default=parse_sizes(SIZES), help=f"default: {SIZES}")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="write figures of the links, times and model there")
    arguments = parser.parse_args()
    with Cluster(Shape(2)) as unshaped:
        fast = statistics.median(link["bandwidth"] for link in links(unshaped))
    rows: List[Tuple[str, ...]] = [("layout", "size", "measured", "quarters", "modelled", "modelled / measured")]
    worst = 0.0
    written: Dict[str, Any] = {}
    for name in arguments.layouts.split(","):
        with Cluster(LAYOUTS[name]) as cluster:
            content = describe(cluster, fast)
            times = measure(cluster, arguments.sizes, arguments.rounds)
        for nbytes, seconds in times.items():
            middle, model = statistics.median(seconds), modelled(content, nbytes)
            low, high = np.percentile(seconds, [25, 75])
            worst = max(worst, abs(model / middle - 1))
            between = f"{1e3 * low:.2f}-{1e3 * high:.2f} ms"
            rows.append(
                (name, exact_bytes_text(nbytes), duration(middle), between, duration(model), f"{model / middle:.3f}")
            )
        written[name] = {"machine": content, "seconds": times}
    print("\n".join(aligned(rows)))
    print(f"farthest off: {100 * worst:.1f} %")
    if arguments.json:
        facts = {
            "command": shlex.join(["python", "-m", "benchmarks.predictions.simulate_check", *sys.argv[1:]]),
            "machine": this_machine.facts(),
            "layouts": written,
        }
        arguments.json.write_text(json.dumps(facts, indent=1) + "\n")
    return int(worst > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
