"""What the programs share: a mesh over all processes, and arrays with a part in each."""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

#: The dimension of which each process has one row.
ROWS = PartitionSpec(("a", "b"))


def mesh(*shape):
    return Mesh(np.array(jax.devices()).reshape(shape), ("a", "b"))


def spread(mesh, row):
    """Return the array whose rows are those that the processes pass."""
    return jax.make_array_from_process_local_data(NamedSharding(mesh, ROWS), row[None])


def on(mesh, function):
    """Return a compiled function of such an array, which gets this process's row and returns it."""

    def of_rows(rows):
        return function(rows[0])[None]

    return jax.jit(jax.shard_map(of_rows, mesh=mesh, in_specs=ROWS, out_specs=ROWS, check_vma=False))


def own(array):
    """Return this process's row."""
    return np.asarray(array.addressable_shards[0].data)[0]


def served_by_ddl():
    """Return how many collectives DDL has run for JAX."""
    from ddl_jax._groups import _groups

    return sum(communicator.metrics().operations for communicator in _groups.communicators.values())
