"""``make demo-tensorflow``: trains in each of TensorFlow's ways, with one process, then with two ranks."""

from __future__ import annotations

import comparison

EXAMPLES = {"Keras fit": "tf_keras_digits.py", "own loop": "tf_loop_digits.py", "TF1 session": "tf1_session_digits.py"}


def main() -> None:
    given = comparison.parser(list(EXAMPLES)).parse_args()
    environ = comparison.environment(TF_CPP_MIN_LOG_LEVEL="2")
    environ.update(TF_NUM_INTRAOP_THREADS="1", TF_NUM_INTEROP_THREADS="1")
    ways = [given.only] if given.only else list(EXAMPLES)
    runs = [comparison.run(EXAMPLES[way], way, ranks, given, environ) for way in ways for ranks in (1, given.ranks)]
    comparison.show(runs)


if __name__ == "__main__":
    main()
