"""Groups with several backends: tensors on the CPU are DDL's, those of another device its backend's.

The other device is one that Python can make ("npy": memory without arithmetic), its backend torch's "fake", which does
nothing: that a tensor of the device stays what it was shows that DDL did not see it, and DDL would refuse it.
"""

from __future__ import annotations

import pytest
import ranks
from process_groups import begin

torch = pytest.importorskip("torch")


def start(path, backend, bound=None):
    registration = pytest.importorskip("torch.utils.backend_registration")
    if not hasattr(registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip("this version of torch has no devices in Python")
    registration._setup_privateuseone_for_python_backend("npy")
    import torch.testing._internal.distributed.fake_pg  # noqa: F401 (registers "fake")

    options = {} if bound is None else {"device_id": torch.device(bound)}
    dist, r, n = begin(path, backend=backend, **options)
    assert torch.accelerator.current_accelerator().type == "npy"
    return dist, r, n, torch._C._acc.create_empty_tensor((3,), torch.float32)


def mixed(path, backend):
    dist, r, n, there = start(path, backend)
    import ddl

    for group in (None, dist.new_group(list(range(n))), dist.new_group([r], use_local_synchronization=True)):
        size = dist.get_world_size(group)
        x = torch.ones(3)
        dist.all_reduce(x, group=group)
        assert x.tolist() == [size] * 3
        for call in (
            lambda group=group: dist.all_reduce(there, group=group),
            lambda group=group: dist.all_reduce(there, group=group, async_op=True).wait(),
            lambda group=group: dist.broadcast(there, group_src=0, group=group),
            lambda group=group, size=size: dist.all_gather([there] * size, there, group=group),
        ):
            call()
        dist.gather(there, [there] * size if dist.get_rank(group) == 0 else None, group_dst=0, group=group)
        gathered = [None] * size
        dist.all_gather_object(gathered, r, group=group)  # on the CPU, where there is one
        assert gathered == dist.get_process_group_ranks(group)
        dist.barrier(group=group)
    world = dist.group.WORLD
    assert {device.type for device in world._device_types} == {"cpu", "npy"}
    assert type(world._get_backend(torch.device("npy"))).__name__ == "FakeProcessGroup"
    assert dist.get_backend_config() == backend and dist.get_backend(world) == backend
    if r == 0:
        dist.send(torch.ones(2), 1, tag=3)
    elif r == 1:
        assert dist.recv(torch.empty(2), tag=3) == 0
    only = dist.new_group(list(range(n)), backend="cpu:ddl")
    with pytest.raises(ddl.InvalidArgument, match="the tensor is on npy.*copy it to the CPU"):
        dist.all_reduce(there, group=only)
    with pytest.raises(ddl.InvalidState, match="no backend but ddl"):
        only._start_coalescing(torch.device("npy"))
    dist.destroy_process_group(only)
    dist.destroy_process_group()
    assert not dist.is_initialized()


@pytest.mark.parametrize("backend", ["cpu:ddl,npy:fake", "npy:fake,cpu:ddl"])
def test_two_backends_of_a_group(backend: str, tmp_path) -> None:
    ranks.run(2, mixed, str(tmp_path / "store"), backend, initialise=False)


def bound(path):
    dist, r, n, there = start(path, "cpu:ddl,npy:fake", bound="npy:0")
    dist.all_reduce(there)
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x.item() == n
    with pytest.raises(RuntimeError, match="No device associated with the default pg|ddl.* cannot be split; new_group"):
        dist.split_group(split_ranks=[[0], [1]])
    with pytest.raises(TypeError, match="does not support shrinking"):
        dist.shrink_group([1])
    dist.destroy_process_group()


def test_a_bound_device(tmp_path) -> None:
    """What torch asks of the group while it makes it; and what docs/torch.md says of split_group."""
    ranks.run(2, bound, str(tmp_path / "store"), initialise=False)
