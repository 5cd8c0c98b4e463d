"""Train by Optax on this rank's share of each batch, and write the weights and the optimizer's state to a file."""

from __future__ import annotations

import sys

import ddl_jax as ddl  # isort: skip
import jax
import jax.numpy as jnp
import numpy as np
import optax

ddl.init()
me, size = ddl.rank(), ddl.size()
jax.config.update("jax_enable_x64", True)
data = np.random.default_rng(0)
inputs, targets = data.normal(size=(20, 24, 8)), data.normal(size=(20, 24, 2))
share = slice(me * 24 // size, (me + 1) * 24 // size)


def loss(parameters, x, y):
    hidden = jnp.tanh(x @ parameters["in"] + parameters["bias"])
    return ((hidden @ parameters["out"] - y) ** 2).mean()


rule = {"sgd": optax.sgd(0.1, momentum=0.9), "adam": optax.adam(0.01)}[sys.argv[1]]
optimizer = optax.chain(ddl.average_gradients(), optax.clip_by_global_norm(0.5), rule)
start = np.random.default_rng(100 + me)  # another one on each rank
parameters = {"in": start.normal(size=(8, 6)), "bias": start.normal(size=6), "out": start.normal(size=(6, 2))}
parameters = ddl.broadcast_parameters(jax.tree.map(jnp.asarray, parameters))
state = optimizer.init(parameters)


@jax.jit
def step(parameters, state, x, y):
    updates, state = optimizer.update(jax.grad(loss)(parameters, x, y), state, parameters)
    return optax.apply_updates(parameters, updates), state


for x, y in zip(inputs, targets):
    parameters, state = step(parameters, state, x[share], y[share])
leaves = [np.asarray(leaf).ravel() for leaf in jax.tree.leaves((parameters, state))]
np.save(f"{sys.argv[2]}.{me}", np.concatenate(leaves))
