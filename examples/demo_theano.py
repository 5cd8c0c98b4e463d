"""What ``make demo-theano`` runs: the digits in Theano on one process, then on two ranks."""

from __future__ import annotations

import comparison

#: What Theano needs on a Python of today (docs/theano.md); whoever sets THEANO_FLAGS knows better.
FLAGS = "floatX=float32,device=cpu,blas.ldflags="


def main() -> None:
    given = comparison.parser(epochs=20, width=512).parse_args()
    environ = comparison.environment(THEANO_FLAGS=FLAGS)
    runs = [comparison.run("theano_digits.py", "loop", ranks, given, environ, timed=True) for ranks in (1, given.ranks)]
    comparison.show(runs, communicating="in the Op that averages, where ranks also wait for one another")


if __name__ == "__main__":
    main()
