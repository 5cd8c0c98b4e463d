"""``make demo-theano``: trains on the digits in Theano, with one process, then with two ranks."""

from __future__ import annotations

import comparison

#: The flags that Theano needs on a current Python (docs/theano.md). The user's THEANO_FLAGS replace them.
FLAGS = "floatX=float32,device=cpu,blas.ldflags="


def main() -> None:
    given = comparison.parser(epochs=20, width=512).parse_args()
    environ = comparison.environment(THEANO_FLAGS=FLAGS)
    runs = [comparison.run("theano_digits.py", "loop", ranks, given, environ, timed=True) for ranks in (1, given.ranks)]
    comparison.show(runs, communicating="in the Op that averages, where ranks also wait for one another")


if __name__ == "__main__":
    main()
