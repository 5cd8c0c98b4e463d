"""Scenes of values (scenes.py): what operations, copies and random numbers give is what they give on the CPU."""

from __future__ import annotations

from typing import Any, Callable, List

import torch
from device.fake_cuda import Fake
from device.fake_torch.scenes import DEVICE, same
from torch import nn

X = torch.arange(24, dtype=torch.float32).reshape(4, 6).sub(7.5).div(3)
INTEGERS = torch.tensor([5, 1, 3, 1])
OPERATIONS: List[Callable[[torch.Tensor, torch.Tensor], Any]] = [
    lambda x, i: x + x.t().reshape(4, 6),
    lambda x, i: x * 2 - 1.5,
    lambda x, i: x.t() @ x,
    lambda x, i: x[1:3, ::2].add_(10) + x[1:3, 1::2],
    lambda x, i: x.exp().log1p().sqrt().sum(dim=1, keepdim=True),
    lambda x, i: x.mean(),
    lambda x, i: x.max(dim=0),
    lambda x, i: x.argmax(),
    lambda x, i: x.sort(dim=1, descending=True),
    lambda x, i: x.topk(2),
    lambda x, i: x > 0,
    lambda x, i: x[x > 0],
    lambda x, i: x[i % 4],
    lambda x, i: x.index_select(0, i % 4),
    lambda x, i: x.index_put_((i % 4,), torch.ones_like(x)),
    lambda x, i: x.scatter_add_(1, i.reshape(4, 1) % 6, x * 2),
    lambda x, i: x.gather(1, i.reshape(4, 1) % 6),
    lambda x, i: torch.where(x > 0, x, -x),
    lambda x, i: x.masked_fill(x < 0, 9),
    lambda x, i: torch.cat([x, x * 2], dim=1),
    lambda x, i: torch.stack([x, x]).flip(0),
    lambda x, i: x.split(4, dim=1),
    lambda x, i: x.unbind(0),
    lambda x, i: x.expand(2, 4, 6).contiguous(),
    lambda x, i: x.repeat(2, 1),
    lambda x, i: x.roll(1, 0),
    lambda x, i: x.unfold(1, 3, 2).sum(-1),
    lambda x, i: x.permute(1, 0)[1:].clone(),
    lambda x, i: x.to(torch.bfloat16).to(torch.float64),
    lambda x, i: x.to(torch.int32).to(torch.bool),
    lambda x, i: x.half().float(),
    lambda x, i: x.softmax(1),
    lambda x, i: nn.functional.cross_entropy(x, i),
    lambda x, i: nn.functional.gelu(x),
    lambda x, i: nn.functional.mse_loss(x, -x),
    lambda x, i: nn.functional.smooth_l1_loss(x, -x, reduction="sum"),
    lambda x, i: nn.functional.layer_norm(x, (6,)),
    lambda x, i: nn.functional.embedding(i % 4, x),
    lambda x, i: nn.functional.max_pool2d(x.reshape(1, 1, 4, 6), 2),
    lambda x, i: nn.functional.interpolate(x.reshape(1, 1, 4, 6), scale_factor=2),
    lambda x, i: nn.functional.pad(x, (1, 2)),
    lambda x, i: torch.einsum("ij,kj->ik", x, x),
    lambda x, i: torch.linalg.vector_norm(x),
    lambda x, i: x.cumsum(0),
    lambda x, i: x.var(unbiased=False),
    lambda x, i: x.isnan().any(),
    lambda x, i: torch._foreach_add([x, x], 1.0),
    lambda x, i: torch._foreach_norm([x, x * 2]),
    lambda x, i: torch.complex(x, -x).conj().imag.contiguous(),
    lambda x, i: torch.view_as_real(torch.complex(x, x) * 1j),
    lambda x, i: torch.view_as_complex(torch.stack([x, x], dim=-1)).abs(),
    lambda x, i: x.view(torch.int32),
    lambda x, i: (i.sum().item(), i.tolist(), x.numel()),
    lambda x, i: i.bincount(),
    lambda x, i: i.unique(),
    lambda x, i: torch.add(x, x, out=torch.empty(0, device=x.device)),
    lambda x, i: torch.arange(3, 9, 2, device=x.device),
    lambda x, i: torch.linspace(0, 1, 5, device=x.device),
    lambda x, i: torch.eye(3, device=x.device),
    lambda x, i: torch.tril(x),
    lambda x, i: torch.ones(2, 3, dtype=torch.int8, device=x.device).mul_(3),
    lambda x, i: torch.zeros(0, 3, device=x.device) + 1,
    lambda x, i: torch.tensor([[1, 2], [3, 4]], device=x.device),
    lambda x, i: x.new_full((2,), 4).resize_(2, 2).fill_(1),
    lambda x, i: x.clone().set_(x.clone().untyped_storage(), 2, (3, 2), (6, 2)),
    lambda x, i: x.reshape(2, 2, 2, 3).to(memory_format=torch.channels_last) * 2,
]


def values(fake: Fake) -> None:
    """Operations give what they give on the CPU, and leave what they write in place."""
    for number, operation in enumerate(OPERATIONS):
        x, i = X.clone(), INTEGERS.clone()
        device_x, device_i = x.to(DEVICE), i.to(DEVICE)
        try:
            same(operation(device_x, device_i), operation(x, i))
            same(device_x, x)
        except Exception as error:
            raise AssertionError(f"operation {number} of OPERATIONS") from error
    x = X[None].to(DEVICE)  # the CPU has a fused kernel for this, which adds up in another order
    attention = nn.functional.scaled_dot_product_attention
    torch.testing.assert_close(attention(x, x, x).cpu(), attention(X[None], X[None], X[None]))
    assert fake.violations == []


def copies(fake: Fake) -> None:
    """Copies convert, keep strides apart, and leave neighbours alone."""
    flat = torch.zeros(24, device=DEVICE)
    block = flat.view(4, 6)
    block[:, 1:3].copy_(torch.ones(4, 2, dtype=torch.float64))
    block[1].copy_(torch.arange(6))
    block.t()[4:].copy_(block.t()[:2])
    expected = torch.zeros(4, 6)
    expected[:, 1:3] = 1
    expected[1] = torch.arange(6)
    expected.t()[4:] = expected.t()[:2].clone()
    same(block, expected)
    target = torch.zeros(6, 4, dtype=torch.int64)
    target.t().copy_(block, non_blocking=True)
    assert torch.equal(target, expected.t().long())
    assert torch.equal(block.to("cpu", torch.float16), expected.half())
    source = torch.arange(1000.0).pin_memory()
    assert source.is_pinned() and not target.is_pinned()
    back = torch.empty(1000).pin_memory()
    back.copy_(source.to(DEVICE, non_blocking=True) * 2, non_blocking=True)
    torch.accelerator.synchronize()
    assert torch.equal(back, source * 2)
    assert fake.violations == []


def gaps_are_not_written(fake: Fake) -> None:
    """A tensor that is written takes nothing of its neighbours, not even in the ledger's eyes."""
    side = torch.fake.Stream()
    flat = torch.zeros(100, device=DEVICE)
    torch.accelerator.synchronize()
    with torch.fake.stream(side):
        flat[::2].add_(1)
        flat[51:100:2].mul_(3)
    flat[1:50:2].add_(2)
    torch.accelerator.synchronize()
    expected = torch.zeros(100)
    expected[::2] = 1
    expected[1:50:2] = 2
    same(flat, expected)
    assert fake.violations == []


def random_numbers(fake: Fake) -> None:
    """A seed gives the same numbers again, those of a generator of the CPU."""
    torch.manual_seed(5)
    first = torch.randn(100, device=DEVICE)
    torch.manual_seed(5)
    assert torch.equal(first.cpu(), torch.randn(100))
    state = torch.fake.get_rng_state()
    second = torch.rand(10, device=DEVICE)
    torch.fake.set_rng_state(state)
    assert torch.equal(second, torch.rand(10, device=DEVICE))
    generator = torch.Generator(DEVICE).manual_seed(3)
    third = torch.randint(0, 1000, (50,), device=DEVICE, generator=generator)
    assert torch.equal(third.cpu(), torch.randint(0, 1000, (50,), generator=torch.Generator().manual_seed(3)))
    same(torch.randperm(9, device=DEVICE, generator=generator).sort()[0], torch.arange(9))
    with torch.random.fork_rng([0, 1], device_type=DEVICE):
        fourth = torch.rand(3, device=DEVICE)
    assert torch.equal(fourth, torch.rand(3, device=DEVICE))


def refusals(fake: Fake) -> None:
    """Tensors of two devices do not mix, and the host cannot touch the device's memory."""
    x = torch.ones(3, device=DEVICE)
    for other in (torch.ones(3), torch.ones(3, device="fake:1")):
        for operation in (torch.add, torch.dot):
            try:
                operation(x, other)
            except RuntimeError as error:
                assert "same device" in str(error)
            else:
                raise AssertionError(f"{operation} mixes devices")
    same(x + torch.tensor(2.0), torch.full((3,), 3.0))
    assert fake.pointer_attributes(x.data_ptr())["memory_type"] == 2
    for wrong in (lambda: x.numpy(), lambda: torch.ones(3, device="fake:5")):
        try:
            wrong()
        except (RuntimeError, TypeError):
            continue
        raise AssertionError("nothing was refused")


SCENES: List[Callable[[Fake], None]] = [
    values,
    copies,
    gaps_are_not_written,
    random_numbers,
    refusals,
]
