"""All collectives of XLA, of many types and sizes, on all ranks and on groups of them, against numpy: exact."""

from __future__ import annotations

import jax

jax.distributed.initialize()

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax  # noqa: E402
from on_mesh import mesh, on, own, served_by_ddl, spread  # noqa: E402

me, size = jax.process_index(), jax.process_count()
jax.config.update("jax_enable_x64", True)
TYPES = [np.int8, np.uint16, np.int32, np.uint64, jnp.bfloat16, np.float32, np.float64, np.complex64, np.complex128]


def check(what, got, wanted):
    assert got.dtype == wanted.dtype and got.shape == wanted.shape, (what, got.dtype, got.shape, wanted.shape)
    assert (got == wanted).all(), (what, got.dtype, got.shape)


def rows_of(kind, length):
    """Small whole numbers, which every type holds, as it does their sums and products."""
    return [(np.random.default_rng(rank).integers(0, 3, length)).astype(kind) for rank in range(size)]


def check_all(whole, kind, length):
    """On all ranks."""
    rows = rows_of(kind, length * size)
    array, stack = spread(whole, rows[me]), np.stack(rows)
    axes = ("a", "b")
    total = stack.sum(0).astype(kind)
    check("psum", own(on(whole, lambda x: lax.psum(x, axes))(array)), total)
    if np.issubdtype(kind, np.complexfloating):
        return
    check("pmax", own(on(whole, lambda x: lax.pmax(x, axes))(array)), stack.max(0))
    check("pmin", own(on(whole, lambda x: lax.pmin(x, axes))(array)), stack.min(0))
    check("all_gather", own(on(whole, lambda x: lax.all_gather(x, axes))(array)), stack)
    scattered = on(whole, lambda x: lax.psum_scatter(x.reshape(size, -1), axes))(array)
    check("psum_scatter", own(scattered), total.reshape(size, -1)[me])
    ring = [(rank, (rank + 1) % size) for rank in range(size)]
    check("ppermute", own(on(whole, lambda x: lax.ppermute(x, axes, ring))(array)), rows[me - 1])
    broken_ring = [(0, 0), (1, size - 1)]  # one to itself, and one that nobody sends to
    wanted = {0: rows[0], size - 1: rows[1]}.get(me, np.zeros_like(rows[0]))
    check("ppermute of some", own(on(whole, lambda x: lax.ppermute(x, axes, broken_ring))(array)), wanted)
    blocks = on(whole, lambda x: lax.all_to_all(x.reshape(size, -1), axes, 0, 0, tiled=True))(array)
    check("all_to_all", own(blocks), stack.reshape(size, size, -1)[:, me])


def check_groups(grid, length):
    """On rows and columns of the ranks, and on all, in one program."""
    rows = rows_of(np.float32, length)
    table = np.stack(rows).reshape(2, size // 2, length)
    i, j = divmod(me, size // 2)
    wanted = [table.sum(0)[j], table.sum(1)[i], table.max((0, 1)), table[i].reshape(-1)]

    def collect(x):
        parts = [lax.psum(x, "a"), lax.psum(x, "b"), lax.pmax(x, ("a", "b")), lax.all_gather(x, "b", tiled=True)]
        return jnp.concatenate(parts)

    for _ in range(3):
        check("groups", own(on(grid, collect)(spread(grid, rows[me]))), np.concatenate(wanted))


def check_many(whole, count):
    """So many at once, of which none needs another: XLA may use all of its threads."""
    rows = rows_of(np.float32, 3 * count * count)
    ends = np.cumsum([3 * number for number in range(1, count)])

    def collect(x):
        parts = jnp.split(x, ends)
        return jnp.concatenate([lax.psum(part, ("a", "b")) for part in parts])

    check("many", own(on(whole, collect)(spread(whole, rows[me]))), np.stack(rows).sum(0))


line = mesh(1, size)
for kind in TYPES if size == 2 else [np.float32]:
    check_all(line, kind, 5)
for length in (1, 300_001):
    check_all(line, np.float32, length)
check_many(line, 40)
if size % 2 == 0:
    for length in (1, 4099):
        check_groups(mesh(2, size // 2), length)
print(f"rank {me} of {size}: all right, {served_by_ddl() > 50}")
