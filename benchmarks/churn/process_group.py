"""A process group as torchft uses it: how long until all know that a replica was killed (process_group_worker.py)."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from typing import List

from torch._C._distributed_c10d import TCPStore

from benchmarks import search_path
from benchmarks.churn.report import ChurnOutcome, PauseLimit
from ddl.errors import Error

__all__ = ["measure_process_group"]

_REPLICAS = 3
_LIMIT = PauseLimit(p99=1.0)
_LATEST = 0.05  # seconds after all have begun: until then one is killed
_PATIENCE = 100.0  # seconds for a replica's end


def measure_process_group(outcome: ChurnOutcome, times: int, chance: random.Random) -> None:
    """Let replicas meet so often, kill one, and add to ``outcome`` how long it took until the others had raised."""
    store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    for number in range(times):
        replicas = _begun(f"127.0.0.1:{store.port}/churn/{number}")
        try:
            time.sleep(chance.uniform(0.0, _LATEST))
            victim = replicas.pop(chance.randrange(_REPLICAS))
            moment = time.monotonic()
            victim.kill()
            ends = [replica.communicate(timeout=_PATIENCE)[0] for replica in replicas]
        finally:
            for replica in (*replicas, victim):
                replica.kill()
                replica.wait()
        failed = [replica.returncode for replica in replicas if replica.returncode]
        if failed:
            raise Error(f"a replica ended with {failed[0]}")
        outcome.add("a replica is killed", max(map(float, ends)) - moment, _LIMIT)
        outcome.trainings += 1


def _begun(place: str) -> List[subprocess.Popen[str]]:
    """Start replicas, and return them when all have averaged."""
    environ = {**os.environ, "PYTHONPATH": search_path(os.environ), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", "benchmarks.churn.process_group_worker", place]
    replicas = [
        subprocess.Popen([*line, str(number), str(_REPLICAS)], env=environ, stdout=subprocess.PIPE, text=True)
        for number in range(_REPLICAS)
    ]
    for replica in replicas:
        assert replica.stdout is not None
        if replica.stdout.readline() != "begun\n":
            raise Error(f"a replica has ended before it began: {replica.wait(_PATIENCE)}")
    return replicas
