"""A training on hosts whose ranks come and go, for test_elastic_hosts.py: each rank notes every step that it finishes.

``python elastic_steps.py FOLDER commits|training|large``: the first is a program of ``ddl.elastic`` with numpy, the
second one of ``ddl_torch.elastic.Training``, the third the same with so many weights that members send them while they
train. A step takes 50 ms. The file FOLDER/steps has a line for each step that a rank
has finished: see ``Note``. The file FOLDER/end has the step after which all end. Where FOLDER/die.POINT.N exists,
process N kills itself when it next comes to that point, and so many seconds after it as the file says. Points are
"sync", "commit" and "step" (the first one after a change).
"""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, Dict, NamedTuple

import numpy as np

import ddl
import ddl.elastic
from ddl.adapter import generation

STEP = 0.05  #: seconds
BALLAST = 3_000_000  # floats that a newcomer is sent, so that this takes a while


class Note(NamedTuple):
    """A step that a rank has finished."""

    moment: float  # monotonic, the same clock on all hosts
    host: str
    pid: int
    process: int  # its number in the job
    rank: int
    size: int
    generation: int
    step: int
    weights: str  # a digest of them


class Diary:
    """Writes the notes of this rank, and ends or kills its process as the test wants it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._own = int(os.environ.get("DDL_INCARNATION") or ddl.rank())
        self._log = os.open(folder / "steps", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._generation = 0

    def note(self, step: int, weights: bytes) -> None:
        """Note that a step has ended, with these weights."""
        digest = hashlib.sha256(weights).hexdigest()[:16]
        who = (socket.gethostname(), os.getpid(), self._own, ddl.rank(), ddl.size(), generation.number())
        line = " ".join(map(str, (f"{time.monotonic():.6f}", *who, step, digest)))
        os.write(self._log, f"{line}\n".encode())

    def is_last(self, step: int) -> bool:
        """Whether all end after this step."""
        end = self._folder / "end"
        return end.exists() and step >= int(end.read_text())

    def may_die(self, point: str) -> None:
        """This rank has come to a point at which the test may want it to die."""
        wish = self._folder / f"die.{point}.{self._own}"
        if wish.exists():
            seconds = float(wish.read_text())
            wish.unlink()
            threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()

    def begin_step(self) -> None:
        """A step begins."""
        if generation.number() != self._generation:
            self._generation = generation.number()
            self.may_die("step")


def commits(diary: Diary) -> None:
    class MortalState(ddl.elastic.ObjectState):
        def sync(self) -> None:
            diary.may_die("sync")
            super().sync()

        def commit(self) -> None:
            diary.may_die("commit")
            super().commit()

    state = MortalState(weights=np.zeros(1000), ballast=np.zeros(BALLAST, np.float32), step=0)

    @ddl.elastic.run
    def train(state: Any) -> None:
        while not diary.is_last(state.step):
            diary.begin_step()
            time.sleep(STEP)
            gradient = state.weights - np.random.default_rng([state.step, ddl.rank()]).random(1000)
            state.weights = state.weights - 0.1 * ddl.allreduce(gradient)
            state.step += 1
            diary.note(state.step, state.weights.tobytes())
            state.commit()

    train(state)


def training(diary: Diary, width: int = 64) -> None:
    import torch

    import ddl_torch

    class MortalBallast:
        ballast = bytes(4 * BALLAST)

        def state_dict(self) -> Dict[str, Any]:
            diary.may_die("sync")
            return {"ballast": self.ballast}

        def load_state_dict(self, state: Dict[str, Any]) -> None:
            self.ballast = state["ballast"]

    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))
    plain = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    optimizer = ddl_torch.DistributedOptimizer(plain, model.named_parameters())
    batches = ddl_torch.elastic.ElasticBatches(100_000, 8)
    training = ddl_torch.elastic.Training(model, optimizer, batches, ballast=MortalBallast())
    numbers = torch.utils.data.TensorDataset(torch.arange(100_000.0))
    for _ in training.epochs(1 << 30):
        for (x,) in training.steps(torch.utils.data.DataLoader(numbers, batch_sampler=batches)):
            if diary.is_last(training.finished):
                return
            diary.begin_step()
            optimizer.zero_grad()
            time.sleep(STEP)
            model(torch.sin(x[:, None] * torch.arange(64.0))).square().mean().backward()
            optimizer.step()
            weights = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
            diary.note(training.finished, weights.numpy().tobytes())
            diary.may_die("commit")


def large(diary: Diary) -> None:
    training(diary, 60_000)


if __name__ == "__main__":
    ddl.init()
    {"commits": commits, "training": training, "large": large}[sys.argv[2]](Diary(Path(sys.argv[1])))
