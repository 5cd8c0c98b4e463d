"""Every call of a function that updates parameters by averages is noted in the rank's record, once."""

from __future__ import annotations

import numpy as np
import pytest
import ranks
from own_record import steps

T = pytest.importorskip("theano.tensor", reason="Theano is not installed in this environment")

import theano  # noqa: E402

pytestmark = [pytest.mark.processes, pytest.mark.slow]  # Theano compiles for 4 s


def noted(function, *args):
    before = steps()
    for _ in range(3):
        function(*args)
    return steps() - before


def functions(mode):
    """Parameters by averages of their own, so that there are several all-reduces in a step; a mean of the loss."""
    import ddl_theano as ddl

    x = T.fvector("x")
    first, second = (theano.shared(np.full(3, number, "f")) for number in (1, 2))
    total = theano.shared(np.zeros((), "f"))
    loss = T.sum((first * x - second) ** 2)
    updates = [(p, p - 0.01 * ddl.allreduce(T.grad(loss, p))) for p in (first, second)]
    mean = ddl.allreduce(loss, name="the loss")
    step = theano.function([x], [loss, mean], updates=updates, mode=mode)
    metric = theano.function([x], mean, mode=mode, updates=[(total, total + 1)])
    find = theano.function([x], T.grad(loss, [first, second]), mode=mode)
    sums = [theano.shared(np.zeros(3, "f")) for _ in range(2)]  # of two backward passes
    add = theano.function([x], updates=[(s, s + g) for s, g in zip(sums, T.grad(loss, [first, second]))], mode=mode)
    averages = ddl.allreduce(sums)
    use = theano.function([], updates=[(p, p - 0.01 * g) for p, g in zip([first, second], averages)], mode=mode)
    return {
        "step": (step, 3),
        "a copy of it": (step.copy(), 3),
        "a metric": (metric, 0),
        "two passes": (lambda batch: (add(batch), add(batch), use()), 3),
        "by the host": (lambda batch: ddl.allreduce_arrays(find(batch)), 3),
        "numbers by the host": (lambda batch: ddl.allreduce_arrays([np.ones(1)], name="numbers"), 0),
    }


def counts_steps():
    """In the modes that compile nothing."""
    import ddl_theano as ddl

    batch = np.arange(3, dtype="f") + ddl.rank()
    for mode in (theano.Mode("py", "fast_run"), theano.Mode("py", "merge"), "FAST_COMPILE"):
        counts = {name: (noted(call, batch), expected) for name, (call, expected) in functions(mode).items()}
        assert all(count == expected for count, expected in counts.values()), (mode, counts)


def test_each_update_is_a_step() -> None:
    ranks.run(2, counts_steps)
