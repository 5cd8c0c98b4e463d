"""A training step of ChainerMN's on DDL's communicator and on ChainerMN's ``naive`` over MPICH, in one run, in turns.

    python -m benchmarks.frameworks.chainer_naive

with the interpreter that has Chainer, mpi4py and mpich. The same model, optimizer and batches on two jobs of as many
ranks with one thread each: one is started by ddlrun, the other by mpiexec. They take turns, and the ranks of the one
that is not in turn sleep. What counts is a round's mean on the slower rank; it prints the median over the rounds, and
the ratio: for a step, and for the average of the gradients alone. "alone" is a step that averages nothing.

Exit status: 1 if the weights of two ranks differ by a bit, if those of the two jobs do by more than rounding, or if
DDL is slower.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import subprocess
import sys
import time
import zlib
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, Dict, List, Tuple

import numpy as np

from benchmarks import ROOT

LIMIT = 300.0  #: seconds that a job may take for its start, or for a round
BATCH = 32  #: of a rank
#: By model: steps in a round.
MODELS = {"digits": 40, "dense": 4}
Key = Tuple[str, str]


def network(name: str) -> Any:
    """Return the CNN of examples/chainer_digits.py with 0.16 M parameters, or dense layers with 9.4 M."""
    import chainer
    from chainer import functions as F
    from chainer import links as L

    np.random.seed(1)
    if name == "dense":
        hidden = [layer for _ in range(2) for layer in (L.Linear(2048, 2048), F.relu)]
        layers: List[Any] = [L.Linear(512, 2048), F.relu, *hidden, L.Linear(2048, 10)]
    else:
        layers = [L.Convolution2D(1, 32, 3, pad=1), F.relu, lambda x: F.max_pooling_2d(x, 2)]
        layers += [L.Convolution2D(32, 64, 3, pad=1), F.relu, lambda x: F.max_pooling_2d(x, 2)]
        layers += [L.Convolution2D(64, 128, 3, pad=1), F.relu, L.Linear(512, 128), F.relu, L.Linear(128, 10)]
    return L.Classifier(chainer.Sequential(*layers))


class ChainerTraining:
    """One model on one rank, and its optimizer; without a communicator nothing is averaged."""

    def __init__(self, name: str, rank: int, comm: Any) -> None:
        import chainer
        import chainermn

        self._comm, self._model = comm, network(name)
        optimizer = chainer.optimizers.MomentumSGD(0.01)
        self._optimizer = chainermn.create_multi_node_optimizer(optimizer, comm) if comm else optimizer
        self._optimizer.setup(self._model)
        random = np.random.RandomState(rank)
        shape = (BATCH, 512) if name == "dense" else (BATCH, 1, 8, 8)
        self._batch = random.randn(*shape).astype("f"), random.randint(0, 10, BATCH).astype("i")
        self._optimizer.update(self._model, *self._batch)  # ChainerMN's first one broadcasts

    def step(self) -> None:
        self._optimizer.update(self._model, *self._batch)

    def average(self) -> None:
        self._comm.multi_node_mean_grad(self._model)

    def weights(self) -> Tuple[int, float]:
        """Return a checksum of the weights, and the length of their vector."""
        flat = np.concatenate([parameter.array.ravel() for _, parameter in sorted(self._model.namedparams())])
        return zlib.crc32(flat.tobytes()), float(np.linalg.norm(flat.astype(np.float64)))


def serve(who: str, address: str, secret: str) -> None:
    """Run one rank of a job: do what it is told until the connection ends."""
    import chainermn

    import ddl_chainer

    comm = (ddl_chainer if who == "ddl" else chainermn).create_communicator(who)
    with Client(address, authkey=bytes.fromhex(secret)) as boss:
        boss.send((who, comm.rank))
        trainings: Dict[Key, ChainerTraining] = {}
        while True:
            try:
                verb, contestant, name, steps = boss.recv()
            except EOFError:
                return
            key = (contestant, name)
            if key not in trainings:
                trainings[key] = ChainerTraining(name, comm.rank, None if contestant == "alone" else comm)
            if verb == "weights":
                boss.send(trainings[key].weights())
                continue
            call = getattr(trainings[key], verb)
            comm.allreduce(np.zeros(1))  # all begin together
            begin = time.perf_counter()
            for _ in range(steps):
                call()
            boss.send((time.perf_counter() - begin) / steps)


class Jobs:
    """The two jobs, and a connection to each of their ranks."""

    def __init__(self, size: int) -> None:
        secret = secrets.token_hex(16)
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        self._started: List[subprocess.Popen[bytes]] = []
        self._ranks: Dict[str, List[Connection]] = {"ddl": [], "naive": []}
        launchers = {
            "ddl": [sys.executable, "-m", "ddl.launch", "-np", str(size)],
            "naive": [str(Path(sys.executable).with_name("mpiexec")), "-n", str(size), sys.executable],
        }
        with Listener(family="AF_UNIX", backlog=2 * size, authkey=bytes.fromhex(secret)) as listener:
            for who, launcher in launchers.items():
                line = [*launcher, __file__, "--serve", who, str(listener.address), secret]
                self._started.append(subprocess.Popen(line, env=environ))
            for _ in range(2 * size):
                connection = listener.accept()
                who, _ = connection.recv()
                self._ranks[who].append(connection)

    def ask(self, verb: str, contestant: str, name: str, steps: int = 0) -> List[Any]:
        """Return what each rank answers."""
        ranks = self._ranks["naive" if contestant == "naive" else "ddl"]
        for rank in ranks:
            rank.send((verb, contestant, name, steps))
        for rank in ranks:
            if not rank.poll(LIMIT):
                raise TimeoutError(f"{contestant} gave no answer within {LIMIT:g} s")
        return [rank.recv() for rank in ranks]

    def end(self) -> None:
        for ranks in self._ranks.values():
            for rank in ranks:
                rank.close()
        for process in self._started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def measure(jobs: Jobs, name: str, rounds: int) -> Tuple[Dict[str, List[float]], List[str]]:
    """Return the seconds of a call in each round, by what it is, and what is wrong with the weights."""
    calls = [("step", "ddl"), ("step", "naive"), ("step", "alone"), ("average", "ddl"), ("average", "naive")]
    seconds: Dict[str, List[float]] = {f"{verb} {who}": [] for verb, who in calls}
    for number in range(rounds + 1):
        for verb, who in calls:
            taken = max(jobs.ask(verb, who, name, MODELS[name]))
            if number > 0:  # the first round looks for memory
                seconds[f"{verb} {who}"].append(taken)
    weights = {who: jobs.ask("weights", who, name) for who in ("ddl", "naive")}
    said = [f"{who}: the ranks' weights differ" for who, ranks in weights.items() if len(set(ranks)) > 1]
    length, other = weights["ddl"][0][1], weights["naive"][0][1]
    if abs(length - other) > 1e-5 * length:
        said.append(f"the weights of naive have the length {other}, those of ddl {length}")
    return seconds, said


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=2, help="of each job (%(default)s)")
    parser.add_argument("--model", choices=MODELS, help="one of them only")
    parser.add_argument("--rounds", type=int, default=9, help="that count (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's seconds there")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)  # a rank of a job
    options = parser.parse_args()
    if options.serve:
        serve(*options.serve)
        return 0
    from benchmarks.machine import describe, facts
    from ddl.text.columns import aligned
    from ddl.text.units import duration

    machine = facts()
    rows = [["model", "what", "ddl", "naive", "alone", "ddl/naive"]]
    record: Dict[str, Any] = {"ranks": options.ranks, "date": time.strftime("%Y-%m-%d", time.gmtime())}
    record.update(machine=machine, seconds={})
    problems: List[str] = []
    jobs = Jobs(options.ranks)
    try:
        for name in [options.model] if options.model else MODELS:
            seconds, said = measure(jobs, name, options.rounds)
            problems += said
            record["seconds"][name] = seconds
            medians = {what: statistics.median(taken) for what, taken in seconds.items()}
            for verb in ("step", "average"):
                ratio = medians[f"{verb} ddl"] / medians[f"{verb} naive"]
                alone = duration(medians["step alone"], 3) if verb == "step" else ""
                both = [duration(medians[f"{verb} {who}"], 3) for who in ("ddl", "naive")]
                rows.append([name, verb, *both, alone, f"{ratio:.2f}"])
                problems += [f"{name}, {verb}: ddl takes {ratio:.2f} times as long"] if ratio > 1 else []
    finally:
        jobs.end()
    print(f"{options.ranks} ranks, {describe(machine)}")
    print("\n".join([*aligned(rows), *problems]))
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
