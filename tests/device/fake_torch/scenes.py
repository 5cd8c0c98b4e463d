"""What must hold of the fake device, as functions that a process of their own runs (``test_fake_torch.py``).

A process in which a device is registered is another one than before: autograd has a thread for each device, and
libraries ask ``torch.accelerator``. So no process of pytest becomes such a one.
"""

from __future__ import annotations

import copy
import io
import threading
import warnings
from typing import Any, Callable, List, Tuple

import torch
from device.fake_cuda import Fake
from device.fake_torch import install, restart
from torch import nn

DEVICE = "fake"


def play(scene: Callable[[Fake], None]) -> None:
    """Run a scene on a driver that is new, with two devices. A warning is an error."""
    warnings.simplefilter("error")
    fake = Fake(devices=2)
    install()
    restart()
    torch.accelerator.set_device_index(0)
    torch.manual_seed(7)
    try:
        scene(fake)
    finally:
        fake.pause(False)


def same(device: Any, cpu: Any) -> None:
    """Check that values on the device are those of the CPU, to the bit."""
    if isinstance(cpu, (list, tuple)):
        assert len(device) == len(cpu)
        for left, right in zip(device, cpu):
            same(left, right)
    elif isinstance(cpu, torch.Tensor):
        assert device.device.type == DEVICE and device.dtype == cpu.dtype and device.shape == cpu.shape
        assert torch.equal(device.cpu().nan_to_num(), cpu.nan_to_num()), (device.cpu(), cpu)
    else:
        assert device == cpu


def later(value: float, count: int = 1000) -> torch.Tensor:
    """Return a tensor whose values are on their way, on the current stream."""
    return torch.full((count,), value, device=DEVICE)


# --- values ---

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


# --- order ---


def a_result_is_late(fake: Fake) -> None:
    """A call returns before its result is there; who reads it on the same stream gets it nevertheless."""
    x = torch.zeros(1000, device=DEVICE)
    torch.accelerator.synchronize()
    pinned = torch.ones(1000).pin_memory()
    fake.pause()
    x.fill_(3)
    y = x.clone()
    x.copy_(pinned, non_blocking=True)
    assert not torch.fake.current_stream().query()
    assert fake.pending() > 0
    fake.pause(False)
    same(y, torch.full((1000,), 3.0))
    same(x, torch.ones(1000))
    assert torch.fake.current_stream().query()
    assert fake.violations == []


def pinned_memory_is_read_late(fake: Fake) -> None:
    """A copy without blocking reads pinned memory when it is run; one from other memory has read it when it returns."""
    pinned, plain = torch.ones(10).pin_memory(), torch.ones(10)
    fake.pause()
    x, y = pinned.to(DEVICE, non_blocking=True), plain.to(DEVICE, non_blocking=True)
    pinned.fill_(2)
    plain.fill_(2)
    fake.pause(False)
    same(x, torch.full((10,), 2.0))
    same(y, torch.ones(10))


def side_streams(fake: Fake) -> None:
    """A reader on another stream that waits gets the values, and the ledger is silent; without, it objects."""
    side = torch.fake.Stream()
    for wait in (True, False):
        x = later(1.0) + later(2.0)
        if wait:
            side.wait_stream(torch.fake.current_stream())
        with torch.fake.stream(side):
            y = x * 2
        side.synchronize()
        if wait:
            same(y, torch.full((1000,), 6.0))
            assert fake.violations == []
    assert fake.violations != [] and all("nothing orders these" in text for text in fake.violations)


def the_host_learns_nothing_by_operations(fake: Fake) -> None:
    """Operations do not order streams, though the host has waited in them; a synchronisation does."""
    side = torch.fake.Stream()
    x = later(1.0)
    for _ in range(5):
        y = x + 1
    torch.fake.synchronize()
    with torch.fake.stream(side):
        y.add_(1)
    side.synchronize()
    assert fake.violations == []
    for _ in range(5):
        y = x + y
    with torch.fake.stream(side):
        x.add_(1)
    side.synchronize()
    assert fake.violations != []


def events(fake: Fake) -> None:
    """Events order streams, and tell the host when work has been done."""
    side, event = torch.fake.Stream(priority=-1), torch.fake.Event()
    assert event.query()
    fake.pause()
    x = later(1.0)
    event.record()
    event.wait(side)
    assert not event.query()
    fake.pause(False)
    with torch.fake.stream(side):
        x += 1
        done = torch.fake.current_stream().record_event()
    done.synchronize()
    assert done.query() and event.query()
    same(x, torch.full((1000,), 2.0))
    generic = torch.Event(DEVICE)
    generic.record(side)
    generic.wait(torch.accelerator.current_stream())
    generic.synchronize()
    assert fake.violations == []


def streams(fake: Fake) -> None:
    """Handles are the driver's, and the current stream is a thread's own."""
    default, side = torch.fake.default_stream(), torch.fake.Stream()
    assert torch.fake.current_stream() == default and default.cuda_stream == 0
    assert side.cuda_stream != 0 and fake.stream_done(side.cuda_stream)
    seen: List[Any] = []
    with torch.fake.stream(side):
        assert torch.fake.current_stream() == side == torch.accelerator.current_stream()
        thread = threading.Thread(target=lambda: seen.append(torch.fake.current_stream()))
        thread.start()
        thread.join()
    assert seen == [default] and torch.fake.current_stream() == default
    with side:
        assert torch.fake.current_stream() == side
    assert not torch.fake.is_current_stream_capturing()
    fake.capture_begin(side.cuda_stream)
    with torch.fake.stream(side):
        assert torch.fake.is_current_stream_capturing()
    fake.capture_end(side.cuda_stream)


def two_devices(fake: Fake) -> None:
    """Each device has its streams; a copy between them is ordered on both."""
    x = torch.arange(100.0, device="fake:1")
    assert x.device.index == 1 and torch.fake.current_device() == 0
    y = (x + 1).to("fake:0")
    assert fake.pointer_attributes(y.data_ptr())["ordinal"] == 0
    x.zero_()
    x.copy_(y * 2)
    same(x, (torch.arange(100.0) + 1) * 2)
    with torch.fake.device(1):
        assert torch.ones(1, device=DEVICE).device.index == 1
        side = torch.fake.Stream()
        assert side.device.index == 1
    with torch.fake.stream(side):
        assert torch.fake.current_device() == 1
    assert torch.fake.current_device() == 0
    assert fake.violations == []


# --- memory ---


def freed_memory_is_given_again(fake: Fake) -> None:
    """Freed memory goes to the next allocation of its size on its stream, without a wait; not to other streams."""
    side = torch.fake.Stream()
    x = later(1.0)
    pointer = x.data_ptr()
    with torch.fake.stream(side):
        del x
        assert later(2.0).data_ptr() != pointer
    assert later(3.0, 3000).data_ptr() != pointer
    assert later(3.0, 999).data_ptr() == pointer
    assert fake.violations == []


def use_after_free_is_noticed(fake: Fake) -> None:
    """A copy of another stream from memory that was freed and given again is what the ledger is for."""
    side, host = torch.fake.Stream(), fake.host(4000)
    for kept in (True, False):
        x = later(1.0)
        side.wait_stream(torch.fake.current_stream())
        fake.copy_down(host.address, x.data_ptr(), 4000, side.cuda_stream)
        if kept:
            side.synchronize()
        del x
        y = later(2.0)
        torch.fake.synchronize()
        assert (fake.violations == []) == kept
        del y


def record_stream(fake: Fake) -> None:
    """Memory that another stream uses, and that torch knows of, is not given again before that use has ended."""
    side, host = torch.fake.Stream(), fake.host(4000)
    x = later(1.0)
    pointer = x.data_ptr()
    side.wait_stream(torch.fake.current_stream())
    fake.pause()
    fake.copy_down(host.address, pointer, 4000, side.cuda_stream)
    x.record_stream(side)
    del x
    y = later(2.0)
    assert y.data_ptr() != pointer
    fake.pause(False)
    fake.until(lambda: fake.pending() == 0)
    z = later(3.0)
    assert z.data_ptr() == pointer
    torch.fake.synchronize()
    assert host.view("float32").tolist() == [1.0] * 1000
    assert fake.violations == []


# --- futures ---


def futures(fake: Fake) -> None:
    """A future with devices lets its waiter's stream wait for the stream on which it was completed."""
    side, reader = torch.fake.Stream(), torch.fake.Stream()
    for ordered in (True, False):
        future: torch.futures.Future[Any] = torch.futures.Future(devices=["fake:0"] if ordered else None)
        chained = future.then(lambda done: done.value() + 1) if ordered else None
        with torch.fake.stream(side):
            x = later(1.0)
            future.set_result(x)
        with torch.fake.stream(reader):
            y = future.wait() * 2
            if chained is not None:
                z = chained.wait() + 1
        reader.synchronize()
        assert (fake.violations == []) == ordered
        if ordered:
            same(y, torch.full((1000,), 2.0))
            same(z, torch.full((1000,), 3.0))


# --- training ---


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


def a_failed_device(fake: Fake) -> None:
    """A device that has failed raises instead of blocking."""
    x = later(1.0)
    fake.fail(719, 0)
    try:
        (x + 1).cpu()
    except RuntimeError as error:
        assert "719" in str(error)
    else:
        raise AssertionError("the failure was not noticed")


SCENES: List[Callable[[Fake], None]] = [
    values,
    copies,
    gaps_are_not_written,
    random_numbers,
    refusals,
    a_result_is_late,
    pinned_memory_is_read_late,
    side_streams,
    the_host_learns_nothing_by_operations,
    events,
    streams,
    two_devices,
    freed_memory_is_given_again,
    use_after_free_is_noticed,
    record_stream,
    futures,
    backward_on_side_streams,
    training,
    mixed_precision,
    save_and_load,
    a_failed_device,
]
