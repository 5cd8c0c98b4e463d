"""A training step on DDL and on ``tf.distribute.MultiWorkerMirroredStrategy``, in one run and in turns.

    ddlrun -np 2 python -m benchmarks.frameworks.tensorflow_strategy

The same Keras model, optimizer and loss in a loop of one's own (Keras 3 has no ``fit`` on that strategy), in one
``tf.function`` each. DDL averages by ``DistributedGradientTape``; the strategy by the ring of its collectives over gRPC
(RING), and by what TensorFlow chooses itself (AUTO). A strategy wants a process that has nothing else: every rank
starts one for each, with the settings of glibc's allocator that DDL makes for itself. All take turns, and those that
are not in turn sleep. What counts is a round's mean on the slower rank; printed is the median over the rounds, and the
ratio. "alone" is a step that averages nothing.

Exit status: 1 if the weights of two ranks differ by a bit, if those of DDL and of a strategy differ by more than
rounding, or if DDL is slower than a strategy.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import statistics
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

from benchmarks import search_path

STRATEGIES = ("RING", "AUTO")
#: By model: digits of a rank in a step, steps in a round.
MODELS = {"digits": (32, 30), "dense": (32, 3)}
LIMIT = 300.0  #: seconds that a strategy may take for its start, or for a round
Step = Callable[[], Any]


def network(name: str) -> Any:
    """Return the CNN of examples/tf_keras_digits.py, 0.16 M parameters, or dense layers with 25 M."""
    import keras

    layers = keras.layers
    keras.utils.set_random_seed(1)
    if name == "dense":
        hidden = [layers.Dense(2048, activation="relu") for _ in range(6)]
        return keras.Sequential([keras.Input((2048,)), *hidden, layers.Dense(10)])
    convolutions: List[Any] = []
    for width in (32, 64):
        convolutions += [layers.Conv2D(width, 3, padding="same", activation="relu"), layers.MaxPooling2D()]
    last = layers.Conv2D(128, 3, padding="same", activation="relu")
    flat = [layers.Flatten(), layers.Dense(128, activation="relu"), layers.Dense(10)]
    return keras.Sequential([keras.Input((8, 8, 1)), *convolutions, last, *flat])


def data(name: str, rank: int) -> Tuple[Any, Any]:
    """Return a batch: the first digits, or random numbers in their place."""
    import numpy as np
    import tensorflow as tf

    batch = MODELS[name][0]
    generator = np.random.default_rng(rank)
    shape = (batch, 2048) if name == "dense" else (batch, 8, 8, 1)
    return tf.constant(generator.normal(size=shape).astype("f")), tf.constant(generator.integers(0, 10, batch))


class TensorflowTraining:
    """A model and its optimizer. ``average`` makes of a tape one whose gradients are all ranks' average."""

    def __init__(self, name: str, rank: int, average: Callable[[Any], Any], strategy: Any = None) -> None:
        import keras
        import tensorflow as tf

        self.model = network(name)
        optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
        optimizer.build(self.model.trainable_variables)
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

        def on_replica(images: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                # Inside a strategy Keras divides it by the number of replicas, and adds their gradients up.
                loss = loss_of(labels, self.model(images, training=True))
            variables = [variable.value for variable in self.model.trainable_variables]
            optimizer.apply(average(tape).gradient(loss, variables), self.model.trainable_variables)
            return loss

        replicated = on_replica if strategy is None else lambda *batch: strategy.run(on_replica, batch)
        compiled = tf.function(replicated)
        batch = data(name, rank)
        self.step: Step = lambda: compiled(*batch)

    def seconds(self, steps: int) -> float:
        """Return the mean of so many steps."""
        begin = time.perf_counter()
        for _ in range(steps):
            loss = self.step()
        float(loss)
        return (time.perf_counter() - begin) / steps

    def weights(self) -> Tuple[int, float]:
        """Return a checksum of the weights, and the length of their vector."""
        import numpy as np

        flat = np.concatenate([weight.ravel() for weight in self.model.get_weights()])
        return zlib.crc32(flat.tobytes()), float(np.linalg.norm(flat.astype(np.float64)))


class Strategy:
    """The process of this rank that has a strategy, as seen by the one that has started it."""

    def __init__(self, kind: str, model: str, rank: int, ports: List[int]) -> None:
        from ddl.adapter import malloc_settings

        workers = {"worker": [f"127.0.0.1:{port}" for port in ports]}
        config = json.dumps({"cluster": workers, "task": {"type": "worker", "index": rank}})
        line = [sys.executable, __file__, "--strategy", kind, "--model", model]
        pipe = subprocess.PIPE
        environ = {
            **os.environ,
            **malloc_settings.environ(),
            "TF_CONFIG": config,
            "PYTHONPATH": search_path(os.environ),
        }
        self._process = subprocess.Popen(line, stdin=pipe, stdout=pipe, env=environ, text=True, bufsize=1)
        self._kind = kind

    def answer(self) -> Any:
        """Wait for a line of its, which is JSON."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], LIMIT)[0]:
            self._process.kill()
            raise TimeoutError(f"{self._kind} gave no answer within {LIMIT:g} s")
        text = self._process.stdout.readline()
        if not text:
            raise RuntimeError(f"{self._kind} ended with status {self._process.wait()}")
        return json.loads(text)

    def ask(self, steps: int) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{steps}\n")
        return self.answer()

    def seconds(self, steps: int) -> float:
        return float(self.ask(steps))

    def weights(self) -> Tuple[int, float]:
        checksum, length = self.ask(0)
        return checksum, length

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


def serve(kind: str, name: str) -> None:
    """Run such a process: make the steps it is told; for 0, send weights."""
    import tensorflow as tf

    communication = tf.distribute.experimental.CommunicationOptions(
        implementation=getattr(tf.distribute.experimental.CommunicationImplementation, kind)
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=communication)
    rank = strategy.cluster_resolver.task_id
    with strategy.scope():
        training = TensorflowTraining(name, rank, lambda tape: tape, strategy)  # the optimizer averages
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        steps = int(line)
        print(json.dumps(training.seconds(steps) if steps else training.weights()), flush=True)


def free_ports(count: int) -> List[int]:
    import socket

    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def measure(name: str, rounds: int, ddl: Any) -> Tuple[Dict[str, List[float]], List[str]]:
    """Return the seconds of a step in each round, by contestant, and what is wrong with the weights."""
    import ddl as core

    rank, size, steps = ddl.rank(), ddl.size(), MODELS[name][1]
    started: List[Strategy] = []
    try:
        for kind in STRATEGIES:
            started.append(Strategy(kind, name, rank, core.broadcast_object(free_ports(size))))
        contestants: Dict[str, Any] = {"ddl": TensorflowTraining(name, rank, ddl.DistributedGradientTape)}
        for job in started:
            job.answer()  # it is ready
        contestants.update(zip(STRATEGIES, started))
        contestants["alone"] = TensorflowTraining(name, rank, lambda tape: tape)
        seconds: Dict[str, List[float]] = {who: [] for who in contestants}
        for number in range(rounds + 1):
            for who, contestant in contestants.items():
                core.barrier()
                taken = float(core.allreduce(contestant.seconds(steps), op=core.Max))
                if number > 0:  # the first round traces
                    seconds[who].append(taken)
        weights = core.allgather_object({who: contestants[who].weights() for who in ("ddl", *STRATEGIES)})
    finally:  # only now, as a strategy ends when one of its processes does
        for job in started:
            job.end()
    return seconds, wrong(weights)


def wrong(weights: List[Dict[str, Tuple[int, float]]]) -> List[str]:
    """Return what is wrong with the weights, by rank and contestant."""
    said = [
        f"{who}: the ranks' weights differ" for who in weights[0] if len({of_rank[who][0] for of_rank in weights}) > 1
    ]
    length = weights[0]["ddl"][1]
    return said + [
        f"{who}: the weights have the length {other}, those of ddl {length}"
        for who, (_, other) in weights[0].items()
        if abs(other - length) > 1e-4 * length
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", choices=MODELS, help="one of them only")
    parser.add_argument("--rounds", type=int, default=7, help="that count (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's seconds there")
    parser.add_argument("--strategy", choices=STRATEGIES, help=argparse.SUPPRESS)  # of a process that a rank starts
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # else the table drowns in what is said at the start
    if options.strategy:
        serve(options.strategy, options.model)
        return 0
    import tensorflow as tf

    import ddl_tensorflow as ddl
    from benchmarks.machine import describe, facts
    from ddl.text.columns import aligned
    from ddl.text.units import duration

    ddl.init()
    machine = facts()
    rows = [["model", *(f"{who}, a step" for who in ("ddl", *STRATEGIES, "alone")), "ddl/best strategy"]]
    record: Dict[str, Any] = {"ranks": ddl.size(), "machine": machine}
    record.update(tensorflow=tf.__version__, seconds={})
    problems: List[str] = []
    for name in [options.model] if options.model else list(MODELS):
        seconds, said = measure(name, options.rounds, ddl)
        medians = {who: statistics.median(taken) for who, taken in seconds.items()}
        ratio = medians["ddl"] / min(medians[who] for who in STRATEGIES)
        rows.append([name, *(duration(medians[who], 3) for who in medians), f"{ratio:.2f}"])
        record["seconds"][name] = seconds
        problems += said + ([f"{name}: ddl takes {ratio:.2f} times as long"] if ratio > 1 else [])
    if ddl.rank() == 0:
        print(f"{ddl.size()} ranks, TensorFlow {tf.__version__}, {describe(machine)}")
        print("\n".join([*aligned(rows), *problems]))
        if options.json:
            options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
