"""More programs for the ledger, as in scenes.py: accesses of the host, the ends of memory, and overlaps."""

from __future__ import annotations

from device.fake_cuda.fake import Fake
from device.fake_cuda.scenes import BYTES, Pace, in_thread, scene


@scene
def blocking_copy(fake: Fake, ordered: bool, pace: Pace) -> None:
    """Pageable memory: the caller is blocked, and knows that the copy has ended; another thread does not."""
    device, host, stream = fake.alloc(BYTES), fake.host(BYTES, register=False).address, fake.stream()
    fake.copy_down(host, device, BYTES, stream)
    if ordered:
        fake.access(host, BYTES, writes=True)
    else:
        in_thread(lambda: fake.access(host, BYTES, writes=True))


@scene
def peek(fake: Fake, ordered: bool, pace: Pace) -> None:
    device, host, stream = fake.alloc(BYTES), fake.host(BYTES).address, fake.stream()
    fake.copy_up(device, host, BYTES, stream)
    pace()
    if ordered:
        fake.finish(stream)
    fake.peek(device, BYTES)


@scene
def poke(fake: Fake, ordered: bool, pace: Pace) -> None:
    device, host, stream = fake.alloc(BYTES), fake.host(BYTES).address, fake.stream()
    fake.copy_down(host, device, BYTES, stream)
    pace()
    if ordered:
        fake.finish(stream)
    fake.poke(device, b"x" * BYTES)


@scene
def free(fake: Fake, ordered: bool, pace: Pace) -> None:
    device, host, stream = fake.alloc(BYTES), fake.host(BYTES).address, fake.stream()
    fake.copy_down(host, device, BYTES, stream)
    pace()
    if ordered:
        fake.finish(stream)
    fake.free(device)


@scene
def waiting_free(fake: Fake, ordered: bool, pace: Pace) -> None:
    """A free that waits for the device knows of all that it did."""
    device, host, stream = fake.alloc(BYTES), fake.host(BYTES).address, fake.stream()
    fake.option("free_waits", int(ordered))
    fake.copy_down(host, device, BYTES, stream)
    pace()
    fake.check("cuStreamDestroy_v2", stream)
    fake.free(device)


@scene
def unregister(fake: Fake, ordered: bool, pace: Pace) -> None:
    device, host, stream = fake.alloc(BYTES), fake.host(BYTES).address, fake.stream()
    fake.copy_up(device, host, BYTES, stream)
    pace()
    if ordered:
        fake.finish(stream)
    fake.unregister(host)


@scene
def unregister_of_a_flag(fake: Fake, ordered: bool, pace: Pace) -> None:
    flag, stream = fake.host(4).address, fake.stream()
    fake.write_value(stream, flag, 1)
    pace()
    if ordered:
        fake.finish(stream)
    fake.unregister(flag)


@scene
def two_writers_of_a_flag(fake: Fake, ordered: bool, pace: Pace) -> None:
    """Flags need no order; a plain access beside them does."""
    flag, first, second = fake.host(4).address, fake.stream(), fake.stream()
    fake.write_value(first, flag, 1)
    fake.write_value(second, flag, 1)
    fake.wait_value(fake.stream(), flag, 1)
    pace()
    if not ordered:
        fake.access(flag, 4, writes=False)


@scene
def overlap(fake: Fake, ordered: bool, pace: Pace) -> None:
    """Two copies to the same memory without order, or beside each other."""
    device, host = fake.alloc(BYTES), fake.host(BYTES).address
    fake.copy_down(host, device, 32, fake.stream())
    pace()
    fake.copy_down(host + (32 if ordered else 31), device + 32, 32, fake.stream())
    pace()


@scene
def two_reads(fake: Fake, ordered: bool, pace: Pace) -> None:
    """Nothing need order two reads; a read and a write, something must."""
    device, source, other = fake.alloc(BYTES), fake.host(BYTES).address, fake.host(BYTES).address
    fake.copy_down(other, device, BYTES, fake.stream())
    pace()
    if ordered:
        fake.copy_down(source, device, BYTES, fake.stream())
    else:
        fake.copy_up(device, source, BYTES, fake.stream())
    pace()
