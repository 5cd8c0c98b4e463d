"""Scenes of training (scenes.py): loops, optimizers, mixed precision, and what is saved."""

from __future__ import annotations

import copy
import io
from typing import Any, Callable, List, Tuple

import torch
from device.fake_cuda import Fake
from device.fake_torch.scenes import DEVICE, same
from torch import nn


def backward_on_side_streams(fake: Fake) -> None:
    """Each operation's backward runs on its forward's stream, and joins the caller's."""
    side = torch.fake.Stream()
    x = torch.ones(1000, device=DEVICE, requires_grad=True)
    streams_of_hooks: List[int] = []
    side.wait_stream(torch.fake.current_stream())
    with torch.fake.stream(side):
        y = x * 3
        y.register_hook(lambda gradient: streams_of_hooks.append(torch.fake.current_stream().cuda_stream))
        z = y * y
    torch.fake.current_stream().wait_stream(side)
    z.sum().backward()
    assert streams_of_hooks == [side.cuda_stream]
    assert x.grad is not None
    same(x.grad, torch.full((1000,), 18.0))
    assert fake.violations == []


def model() -> nn.Module:
    """Return a small network of layers that have something to train and something to keep."""
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.ConvTranspose2d(4, 3, 2, stride=2),
        nn.Conv2d(3, 2, 1, bias=False),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * 6 * 6, 5),
    )


def _trained(
    device: str, optimizer: Callable[..., torch.optim.Optimizer], options: Any
) -> Tuple[nn.Module, List[float]]:
    net = model().to(device)
    steps = optimizer(net.parameters(), **options)
    data = torch.Generator().manual_seed(1)
    losses = []
    x, y = torch.randn(8, 1, 6, 6, generator=data), torch.randint(0, 5, (8,), generator=data)
    for _ in range(4):
        steps.zero_grad()
        loss = nn.functional.cross_entropy(net(x.to(device)), y.to(device))
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        steps.step()
        losses.append(loss.item())
    return net, losses


def training(fake: Fake) -> None:
    """A loop gives what it gives on the CPU, with each kind of optimizer."""
    for optimizer, options in (
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "foreach": True}),
        (torch.optim.SGD, {"lr": 0.1, "foreach": False, "weight_decay": 0.1}),
        (torch.optim.Adam, {"lr": 0.01, "foreach": True}),
        (torch.optim.Adam, {"lr": 0.01, "fused": True}),
        (torch.optim.AdamW, {"lr": 0.01}),
    ):
        net, losses = _trained(DEVICE, optimizer, options)
        expected, expected_losses = _trained("cpu", optimizer, options)
        assert losses[-1] < losses[0]
        torch.testing.assert_close(losses, expected_losses)
        for name, tensor in expected.state_dict().items():
            torch.testing.assert_close(net.state_dict()[name].cpu(), tensor)
    assert int(net.state_dict()["1.num_batches_tracked"]) == 4
    assert fake.violations == []


def mixed_precision(fake: Fake) -> None:
    """Autocast casts, and a scaler skips the step whose gradients are infinite."""
    net = nn.Linear(4, 3).to(DEVICE)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=8.0)
    steps = torch.optim.SGD(net.parameters(), lr=0.1)
    for factor in (1.0, float("inf")):
        before = net.weight.detach().clone()
        steps.zero_grad()
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            y = net(torch.ones(2, 4, device=DEVICE))
            assert y.dtype == torch.bfloat16
            loss = nn.functional.mse_loss(y, torch.zeros(2, 3, device=DEVICE, dtype=torch.bfloat16))
            assert loss.dtype == torch.float32
        scaler.scale(loss * factor).backward()
        scaler.step(steps)
        scaler.update()
        assert torch.equal(before, net.weight) == (factor > 1)
    assert scaler.get_scale() == 4.0
    assert fake.violations == []


def save_and_load(fake: Fake) -> None:
    """What was saved on the device is loaded there, or where the reader wants it."""
    net = model().to(DEVICE)
    file = io.BytesIO()
    torch.save({"net": net.state_dict(), "x": torch.arange(5, device="fake:1")}, file)
    for where, device in ((None, "fake:0"), ("cpu", "cpu"), ("fake:1", "fake:1")):
        file.seek(0)
        loaded = torch.load(file, map_location=where)
        assert str(loaded["net"]["0.weight"].device) == device
        assert torch.equal(loaded["net"]["0.weight"].cpu(), net.state_dict()["0.weight"].cpu())
        assert loaded["x"].tolist() == [0, 1, 2, 3, 4]
    again = copy.deepcopy(net)
    same(again[0].weight.detach(), net[0].weight.detach().cpu())
    assert str(net[0].weight.detach()).startswith("tensor(")


SCENES: List[Callable[[Fake], None]] = [
    backward_on_side_streams,
    training,
    mixed_precision,
    save_and_load,
]
