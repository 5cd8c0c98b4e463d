"""Trains again by the records of a training of worker.py: ``RECORDS WIDTH SAMPLES``.

Prints a JSON object: the number of steps, and the digest of the same things as the ranks' last digest.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import ddl_torch as ddl
from benchmarks.churn.worker import digest, network, state_of
from ddl.adapter.sample_cursor import StepRecord


def main() -> None:
    width, samples = map(int, sys.argv[2:4])
    log = [StepRecord.from_plain(plain) for plain in json.loads(Path(sys.argv[1]).read_text())["records"]]
    ddl.init()
    model, optimizer, data = network(width, samples)
    for shards in ddl.elastic.replay(optimizer, list(data), log):
        for x in shards:
            model(x).square().mean().backward()
        optimizer.step()
    print(json.dumps({"steps": len(log), "digest": digest(state_of(model, optimizer))}), flush=True)


if __name__ == "__main__":
    main()
