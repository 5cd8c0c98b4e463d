"""Ranks, chunks and steps as people read them."""

from __future__ import annotations

from typing import Callable, Dict, Sequence

from ddl.plan.ir import Buffer, Kind, Step

__all__ = ["chunks_text", "ranks_text", "run_text", "step_text"]


def ranks_text(ranks: Sequence[int]) -> str:
    """Return ``rank 3``, ``ranks 0, 1`` or ``ranks 0–7``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]}–{ranks[-1]}"
    return "ranks " + ", ".join(map(str, ranks))


def run_text(first: int, count: int) -> str:
    """Return ``4`` or ``4–7``: the chunk ids of a run."""
    return str(first) if count == 1 else f"{first}–{first + count - 1}"


def chunks_text(step: Step) -> str:
    """Return ``chunk 4`` or ``chunks 4–7``."""
    return f"chunk{'' if step.count == 1 else 's'} {run_text(step.first, step.count)}"


def _send(step: Step) -> str:
    if not step.count:
        return f"send an empty message to {_peers(step)}"
    return f"send {chunks_text(step)} of my {_name(step.src)} to {_peers(step)}"


def _recv(step: Step) -> str:
    if not step.count:
        return f"receive an empty message from {_peers(step)}"
    return f"receive {chunks_text(step)} from {_peers(step)} into my {_name(step.dst)}"


def _peers(step: Step) -> str:
    return ranks_text(sorted(step.peers))


def _name(buffer: Buffer) -> str:
    return buffer.name.lower()


_TEXTS: Dict[Kind, Callable[[Step], str]] = {
    Kind.SEND: _send,
    Kind.RECV: _recv,
    Kind.RECV_REDUCE: lambda s: (
        f"receive {chunks_text(s)} from {_peers(s)} and reduce with my {_name(s.src)} into my {_name(s.dst)}"
    ),
    Kind.REDUCE_FROM: lambda s: (
        f"reduce {chunks_text(s)} of {_peers(s)} ({_name(s.src)}) onto my {_name(s.dst)}"
        if s.onto
        else f"reduce {chunks_text(s)} of my {_name(s.src)} and that of {_peers(s)} into my {_name(s.dst)}"
    ),
    Kind.COPY_FROM: lambda s: f"copy {chunks_text(s)} of {_name(s.src)} of {_peers(s)} into my {_name(s.dst)}",
    Kind.COPY_TO: lambda s: f"copy {chunks_text(s)} of my {_name(s.src)} into {_name(s.dst)} of {_peers(s)}",
    Kind.COPY: lambda s: f"copy {chunks_text(s)} of my {_name(s.src)} into my {_name(s.dst)}",
    Kind.NOTIFY: lambda s: f"announce phase {s.phase}",
    Kind.AWAIT: lambda s: f"wait until {_peers(s)} announced phase {s.phase}",
}


def step_text(step: Step) -> str:
    """Return what a step does, in words; the rank that does it is *I*."""
    when = "when all earlier sends are complete: " if step.after_sends else ""
    return when + _TEXTS[step.kind](step) + (" (final)" if step.final else "")
