"""A rank dies, or calls something else, while another one is in a compiled function."""

from __future__ import annotations

import os
import sys

import ddl_jax as ddl  # isort: skip
import jax
import jax.numpy as jnp

import ddl as plain

ddl.init()
step = jax.jit(ddl.allreduce)
x = jnp.ones(1000)
for _ in range(3):
    x = step(x).block_until_ready()
if ddl.rank() == 1:
    if sys.argv[1] == "dies":
        os._exit(3)
    x = jnp.ones(10)
try:
    step(x).block_until_ready()
except jax.errors.JaxRuntimeError as error:
    print("raised", error)
try:
    ddl.allreduce(jnp.ones(3)).block_until_ready()
except jax.errors.JaxRuntimeError as error:
    print("again", error)
plain.shutdown()
os._exit(5)  # JAX would wait for what has failed, and say so once more
