"""What goes wrong in a run, as plain data, and schedules of it drawn from a seed.

A fault names its victim by a place in the list of those that are alive when it strikes, so every subset of a schedule
is a schedule, too: that is what makes shrinking possible.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Tuple

from tests.simulation.chance import Chance

__all__ = ["FAULT_KINDS", "Fault", "Schedule", "draw"]


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong, at second ``at`` of the run."""

    kind: str
    at: float
    who: int = 0  #: place of the victim (process or host) among those there are
    other: int = 0  #: place of a second one; an option for some kinds
    seconds: float = 0.0  #: how long it lasts
    message: str = ""  #: for ``*_at_send``: the kind of message
    count: int = 1  #: for ``*_at_send``: with which message of that kind, from ``at`` on


@dataclass(frozen=True)
class Schedule:
    """One run: the job's shape, and what goes wrong in it."""

    seed: int
    ranks_of_hosts: Tuple[int, ...] = (4,)
    witness: bool = True  #: ddlrun has the first store; else rank 0 has it
    min_size: int = 1
    patience: float = 30.0
    script_patience: float = 10.0
    deadline: float = 4.0  #: of an operation
    faults: Tuple[Fault, ...] = ()
    faulty_until: float = 15.0  #: from then on, in the liveness mode, a core is healed


#: Each kind with how often it is drawn.
FAULT_KINDS: Dict[str, int] = {
    "crash": 10,
    "crash_at_send": 14,
    "store_crash": 7,
    "store_crash_at_send": 12,
    "host_off": 3,
    "reset": 3,
    "data_reset": 3,
    "partition": 6,
    "one_way": 4,
    "pause": 6,
    "pause_at_send": 6,
    "store_pause": 3,
    "slow": 4,
    "join": 14,
    "remove": 5,
    "goodbye": 2,
    "slow_script": 3,
}
#: What ranks and stores say; a fault may strike when one of these is said.
RANK_SENDS = tuple(
    "here promise accepted ready died installed at stopped caught_up elect elected has_store refused suspect "
    "state".split()
)
STORE_SENDS = ("prepare", "accept", "commit", "go", "where", "stop_at", "left_out", "fail", "probe")
_SHAPES = ((4,), (2,), (3,), (5,), (2, 2), (2, 2, 2), (1, 1), (1, 1, 1), (1, 1, 1, 1), (3, 2), (2, 1), (1, 1, 1, 1, 1))


def draw(seed: int, only: Optional[Mapping[str, int]] = None) -> Schedule:
    """Return the schedule that ``seed`` stands for; with faults of the kinds ``only``, and how often each is drawn."""
    chance = Chance(seed)
    kinds = [kind for kind, weight in (only or FAULT_KINDS).items() for _ in range(weight)]
    shape = _SHAPES[chance.integer(len(_SHAPES), "shape")]
    # Hosts that do not hear each other find out after ten seconds, if no operation has run out of time before.
    patient = chance.at("deadline") < 0.2
    until = chance.between(4.0, 14.0, "until") + (16.0 if patient else 0.0)
    count = 1 + chance.integer(9, "how many")
    bursts = [chance.between(0.2, until, f"burst {place}") for place in range(1 + count // 3)]
    faults: List[Fault] = []
    for place in range(count):
        kind = kinds[chance.integer(len(kinds), f"kind {place}")]
        # Half of the faults come close to one another: alone, each is easy.
        burst = bursts[chance.integer(len(bursts), f"which {place}")]
        near = chance.at(f"near {place}") < 0.6
        at = burst + chance.between(0.0, 0.6, f"at {place}") if near else chance.between(0.1, until, f"at {place}")
        faults.append(_fault(chance, place, kind, round(at, 4), patient))
    return Schedule(
        seed,
        shape,
        witness=chance.at("witness") < 0.7,
        min_size=1 if chance.at("min size") < 0.8 else 2,
        patience=15.0 if chance.at("patience") < 0.15 else 40.0,
        deadline=60.0 if patient else 4.0,
        faults=tuple(sorted(faults, key=lambda fault: fault.at)),
        faulty_until=round(until + 1.0, 4),
    )


def _fault(chance: Chance, place: int, kind: str, at: float, patient: bool) -> Fault:
    who, other = chance.integer(6, f"who {place}"), chance.integer(6, f"other {place}")
    length = chance.at(f"seconds {place}")
    seconds = 0.01 * 3000**length  # 10 ms to 30 s
    if patient and kind in ("partition", "one_way"):
        seconds = 8.0 + 22.0 * length
    message, count = "", 1
    if kind.endswith("at_send"):
        names: Tuple[str, ...] = STORE_SENDS if kind == "store_crash_at_send" else (*RANK_SENDS, *STORE_SENDS)
        message = names[chance.integer(len(names), f"message {place}")]
        count = 1 + chance.integer(6, f"count {place}")
    return Fault(kind, at, who, other, round(seconds, 4), message, count)
