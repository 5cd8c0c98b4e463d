"""What JAX has no public name for: the only file of the adapter that imports from ``jax._src``."""

from __future__ import annotations

import jax

__all__ = ["ClusterEnv", "OrderedEffect", "abstract_token", "apply_primitive", "clusters", "global_state"]

#: What DDL's tests were run with.
TESTED = ("0.10.2", "0.12.0.1")

try:
    from jax._src import effects
    from jax._src.clusters import ClusterEnv
    from jax._src.core import abstract_token
    from jax._src.dispatch import apply_primitive
    from jax._src.distributed import global_state

    #: The classes that JAX asks, in this order, whether they know the job.
    clusters = ClusterEnv._cluster_types

    class OrderedEffect(effects.Effect):
        """The effect of an operation whose order counts, also in loops and branches."""

        def __str__(self) -> str:
            return "ddl"

    effects.lowerable_effects.add_type(OrderedEffect)
    effects.ordered_effects.add_type(OrderedEffect)
    effects.control_flow_allowed_effects.add_type(OrderedEffect)
    effects.custom_derivatives_allowed_effects.add_type(OrderedEffect)
except (ImportError, AttributeError) as error:
    raise ImportError(
        f"ddl_jax does not know JAX {jax.__version__}: {error}. It was tested with JAX {' and '.join(TESTED)}: "
        f"pip install 'jax=={TESTED[-1]}', or try a newer DDL"
    ) from error
