"""A program for elastic jobs that uses DDL: it makes steps with the other ranks, whoever they are, until it may end.

``python elastic_training.py FOLDER``: it ends when FOLDER/end exists, and kills itself where FOLDER/kill.N exists, N
being the number of its process. It does not begin while FOLDER/hold.N exists. It prints its size whenever that has
changed.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import ddl
from ddl.adapter import generation


def formed(finished: int) -> int:
    """Take part in the next generation, whatever happens meanwhile; return how many steps the others have finished."""
    while True:
        try:
            said = generation.next_generation(finished=finished).said
            return max(rank["finished"] for rank in said.values())
        except ddl.CommunicatorError:
            assert ddl.is_initialized()


def main() -> None:
    folder = Path(sys.argv[1])
    own = os.environ.get("DDL_INCARNATION") or os.environ["DDL_RANK"]
    while (folder / f"hold.{own}").exists():
        time.sleep(0.01)
    ddl.init()
    finished, size = (0, 0) if generation.is_member() else (formed(0), 0)
    while True:
        try:
            if size != ddl.size():
                size = ddl.size()
                print(f"{own} is rank {ddl.rank()} of {size}", flush=True)
            over = ddl.allreduce(np.array([(folder / "end").exists(), 1.0]), op="sum")
            assert over[1] == size
            finished += 1
            if over[0]:
                print(f"{own} ends", flush=True)
                return
            if (folder / f"kill.{own}").exists():
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.01)
            if generation.begin_step(finished):
                finished = formed(finished)
        except ddl.CommunicatorError:
            finished = formed(finished)


if __name__ == "__main__":
    main()
