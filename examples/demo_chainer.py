"""``make demo-chainer``: trains by ChainerMN and by plain Chainer, with one process, then with two ranks."""

from __future__ import annotations

import comparison

EXAMPLES = {"ChainerMN": "chainer_digits.py", "own loop": "chainer_plain_digits.py"}


def main() -> None:
    given = comparison.parser(list(EXAMPLES)).parse_args()
    ways = [given.only] if given.only else list(EXAMPLES)
    runs = [
        comparison.run(EXAMPLES[way], way, ranks, given, comparison.environment(), timed=True)
        for way in ways
        for ranks in (1, given.ranks)
    ]
    comparison.show(runs, communicating="gradients are averaged, which is also waiting for a slower rank")


if __name__ == "__main__":
    main()
