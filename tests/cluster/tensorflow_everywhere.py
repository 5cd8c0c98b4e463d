"""Trains the digits on the ranks of this job, and runs on them what tests/tf does on two, on whichever hosts."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

import ranks  # noqa: E402 (it is found there)
from cluster import train_digits_tensorflow  # noqa: E402

import ddl  # noqa: E402
import ddl_tensorflow  # noqa: E402

#: Of each file the functions that ranks run; what kills ranks, or is made for two of them, is not among them.
CHECKS = {
    "test_verbs": ["everything"],
    "test_verbs_in_fit": ["everything"],
    "test_grouped": ["everything"],
    "test_variables": ["everything"],
    "test_gradients": ["everything"],
    "test_training": ["loops", "sessions"],
    "test_keras_callbacks": ["everything"],
    "test_sync_batch_normalization": ["compares"],
    "test_data": ["jobs"],
    "test_errors": ["mistakes"],
}


def main() -> None:
    train_digits_tensorflow.main()
    ddl.shutdown()
    done = []
    for file, names in CHECKS.items():
        for name in names:
            check = ranks._load(str(TESTS / "tf" / f"{file}.py"), name)
            if file not in ("test_errors", "test_keras_callbacks"):  # these begin with what is refused before init
                ddl_tensorflow.init()
            check()
            ddl.shutdown()  # process sets of one are not there for the next
            done.append(f"{file}.{name}")
    ddl_tensorflow.init()
    if ddl.rank() == 0:
        print(f"DONE on {ddl.size()} ranks, {ddl.cross_size()} hosts: {' '.join(done)}")


if __name__ == "__main__":
    main()
