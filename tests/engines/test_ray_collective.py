"""DDL as a backend of ``ray.util.collective``, among actors of a real Ray."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List

import local_ray
import numpy as np
import pytest

pytest.importorskip("ray", reason="Ray is not installed (pip install 'ray==2.60.0')")
pytestmark = [pytest.mark.slow, pytest.mark.processes]

from ddl.ray.collective import register  # noqa: E402

SIZE = 2


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    with local_ray.started() as ray:
        yield ray


class Actor:
    """One of a group, as a user of Ray writes it."""

    def __init__(self, rank: int) -> None:
        register()
        register()  # does nothing
        self.rank = rank

    def join(self, group: str) -> int:
        from ray.util import collective

        collective.init_collective_group(SIZE, self.rank, "DDL", group)
        return int(collective.get_collective_group_size(group))

    def leave(self, group: str) -> None:
        from ray.util import collective

        collective.destroy_collective_group(group)

    def collectives(self, group: str, kind: str) -> Dict[str, Any]:
        """Every collective; arrays of numpy, or tensors of torch by name of their type."""
        from ray.util import collective
        from ray.util.collective.types import ReduceOp

        def of(*values: float) -> Any:
            if kind == "numpy":
                return np.array(values)
            import torch

            return torch.tensor(values, dtype=getattr(torch, kind))

        rank, seen = self.rank, {}
        x = of(rank + 1, 10)
        collective.allreduce(x, group)
        seen["sum"] = x
        x = of(rank + 1, 10)
        collective.allreduce(x, group, ReduceOp.PRODUCT)
        seen["product"] = x
        x = of(rank + 1, 10)
        collective.reduce(x, 1, group, ReduceOp.MAX)
        seen["reduced"] = x
        x = of(rank + 5, 5)
        collective.broadcast(x, 1, group)
        seen["broadcast"] = x
        everybody = [of(0, 0) for _ in range(SIZE)]
        collective.allgather(everybody, of(rank, 7), group)
        seen["gathered"] = everybody[0] * 16 + everybody[1]
        share = of(0, 0)
        collective.reducescatter(share, [of(rank, 1), of(rank, 2)], group)
        seen["share"] = share
        collective.barrier(group)
        message = of(8, 9) if rank == 0 else of(0, 0)
        if rank == 0:
            collective.send(message, 1, group)
        else:
            collective.recv(message, 0, group)
        seen["message"] = message
        return {name: array.tolist() for name, array in seen.items()}

    def waits(self, group: str) -> None:
        from ray.util import collective

        collective.barrier(group)


EXPECTED: List[Dict[str, Any]] = [
    {"sum": [3, 20], "product": [2, 100], "broadcast": [6, 5], "gathered": [1, 119], "message": [8, 9]}
    for _ in range(2)
]
EXPECTED[0].update({"reduced": [1, 10], "share": [1, 2]})
EXPECTED[1].update({"reduced": [2, 10], "share": [1, 4]})


@pytest.fixture(scope="module")
def actors(ray: Any) -> List[Any]:
    register()
    return [ray.remote(Actor).remote(rank) for rank in range(SIZE)]


@pytest.mark.parametrize("kind", ["numpy", "float32", "bfloat16"])
def test_collectives(ray: Any, actors: List[Any], kind: str) -> None:
    if kind != "numpy":
        pytest.importorskip("torch", reason="PyTorch is not installed")
    assert ray.get([actor.join.remote(kind) for actor in actors]) == [SIZE] * SIZE
    assert ray.get([actor.collectives.remote(kind, kind) for actor in actors]) == EXPECTED
    ray.get([actor.leave.remote(kind) for actor in actors])


def test_a_group_that_the_driver_declares_and_a_second_one_of_the_same_name(ray: Any, actors: List[Any]) -> None:
    from ray.util import collective

    for _ in range(2):
        collective.create_collective_group(actors, SIZE, [0, 1], "DDL", "declared")
        assert ray.get([actor.collectives.remote("declared", "numpy") for actor in actors]) == EXPECTED
        ray.get([actor.leave.remote("declared") for actor in actors])


@pytest.mark.faults
def test_the_other_actors_learn_which_one_was_killed(ray: Any, actors: List[Any]) -> None:
    """The last test here: it takes an actor away."""
    import ddl

    ray.get([actor.join.remote("fault") for actor in actors])
    waits = actors[0].waits.remote("fault")
    ray.kill(actors[1])
    with pytest.raises(ddl.PeerLost, match="rank 1.*its process ended"):
        ray.get(waits)
