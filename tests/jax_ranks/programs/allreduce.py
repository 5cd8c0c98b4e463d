"""ddl_jax.allreduce against numpy: types, operators, trees, compiled and not, in loops, with derivatives; refusals."""

from __future__ import annotations

import ddl_jax as ddl  # isort: skip
import jax
import jax.numpy as jnp
import numpy as np

import ddl as plain

me, size = 0, 1


def refused(error, text, function, *arguments):
    try:
        function(*arguments)
    except error as raised:
        assert text in str(raised), raised
    else:
        raise AssertionError(f"no {error.__name__}: {text}")


def of(rank, kind, length=7):
    return np.random.default_rng(rank).integers(0, 3, length).astype(kind)


def check_types():
    for kind in (np.int8, np.uint32, np.int64, jnp.bfloat16, np.float16, np.float32, np.float64, np.complex64):
        own, stack = of(me, kind), np.stack([of(rank, kind) for rank in range(size)])
        wanted = {"sum": stack.sum(0)}
        if not np.issubdtype(kind, np.complexfloating):
            wanted.update(min=stack.min(0), max=stack.max(0), product=stack.prod(0))
        if jnp.issubdtype(kind, np.inexact):
            wanted["average"] = stack.sum(0)  # of ``size`` times as much: no type rounds that
        for op, result in wanted.items():
            given = jnp.asarray(own * own.dtype.type(size) if op == "average" else own)
            for call in (ddl.allreduce, jax.jit(ddl.allreduce, static_argnums=1)):
                got = call(given, op)
                assert got.dtype == own.dtype and (np.asarray(got) == result.astype(kind)).all(), (kind, op, got)


def check_trees():
    """Small arrays of a type are sent as one; large ones are not."""
    shapes = [(3,), (2, 2), (), (0, 4), (300, 300)]
    tree = {str(shape): [jnp.full(shape, me + 1, kind) for kind in (np.float32, np.int32)] for shape in shapes}
    total = size * (size + 1) // 2
    for call in (lambda x: ddl.allreduce(x, "sum"), jax.jit(lambda x: ddl.allreduce(x, "sum"))):
        for shape, arrays in call(tree).items():
            for array, kind in zip(arrays, (np.float32, np.int32)):
                assert array.dtype == kind and str(array.shape) == shape and (np.asarray(array) == total).all()
    assert ddl.allreduce({}) == {}


def check_derivatives():
    weights = jnp.arange(4.0) + me

    def loss(x, op):
        return (ddl.allreduce(x * x, op) * (me + 1)).sum()

    for grad in (jax.grad(loss), jax.jit(jax.grad(loss), static_argnums=1)):
        factors = sum(rank + 1 for rank in range(size))  # each rank's loss counts
        assert np.allclose(grad(weights, "sum"), 2 * weights * factors)
        assert np.allclose(grad(weights, "average"), 2 * weights * factors / size)
    refused(ddl.InvalidArgument, "has no derivative", jax.grad(lambda x: ddl.allreduce(x, "max").sum()), weights)


def check_loops():
    def body(carry, _):
        return ddl.allreduce(carry, "sum") + 1, ddl.allreduce(carry, "max")

    last, seen = jax.jit(lambda x: jax.lax.scan(body, x, None, length=3))(jnp.float32(me))
    values = [np.arange(size, dtype=float)]
    for _ in range(3):
        values.append(np.full(size, values[-1].sum() + 1))
    assert last == values[3][0] and (np.asarray(seen) == [value.max() for value in values[:3]]).all()
    mapped = jax.vmap(lambda x: ddl.allreduce(x, "max"))(jnp.full((2, 3), me))
    assert mapped.shape == (2, 3) and (np.asarray(mapped) == size - 1).all()


def check_order():
    """Each rank has a program of its own, and XLA would run the calls in another order on each."""

    def program(x):
        parts = []
        for number in range(8):
            work = x @ x if number % size == me else x  # so long does this rank take before the call
            parts.append(ddl.allreduce(work[0, :3] * 0 + number, "max"))
        return parts, (jnp.linalg.norm(parts[0]) if me else None)

    for _ in range(5):
        parts, _ = jax.jit(program)(jnp.ones((300, 300)))
        assert [float(part[0]) for part in parts] == list(range(8)), parts


def check_broadcast():
    tree = {"a": jnp.full((2, 3), me, jnp.float32), "b": [jnp.full(4, me, jnp.bfloat16), np.int64(me), me]}
    got = ddl.broadcast_parameters(tree, root=size - 1)
    assert jax.tree.structure(got) == jax.tree.structure(tree)
    assert all((np.asarray(leaf, np.float32) == size - 1).all() for leaf in jax.tree.leaves(got))
    assert got["b"][0].dtype == jnp.bfloat16 and isinstance(got["a"], jax.Array)


refused(ddl.InvalidState, "init", ddl.allreduce, jnp.ones(3))
ddl.init()
ddl.init()
me, size = ddl.rank(), ddl.size()
jax.config.update("jax_enable_x64", True)
refused(ddl.InvalidArgument, "no average", ddl.allreduce, jnp.ones(3, bool))
refused(ddl.InvalidArgument, "no whole number", ddl.allreduce, jnp.ones(3, int))
for check in (check_types, check_trees, check_derivatives, check_loops, check_order, check_broadcast):
    check()
assert plain.allreduce(1, op="sum") == size  # DDL's own calls go on beside it
ddl.shutdown()
print(f"rank {me} of {size}: all right")
