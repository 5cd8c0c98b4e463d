"""Finds racks by measurement: all hosts exchange data at once, in pairs. Slow pairs are behind different switches.

``ddl.tuning.racks`` chooses the pairs and infers racks from the rates; here are the clocks. Racks are used only if they
make large all-reduces faster, by the same rule as for the lines of the table.
"""

from __future__ import annotations

import math
from typing import Callable, Mapping, Optional, Sequence, Tuple

import numpy as np

from ddl import clock
from ddl.communicator import Communicator
from ddl.plan.ir import Collective
from ddl.reduce_op import Max, Min
from ddl.text.units import bytes_text, duration
from ddl.tuning.measure.timed_calls import TimedCalls
from ddl.tuning.measure.turns import RaceOutcome, check_results, medians_of, settle, take_turns
from ddl.tuning.racks import FEWEST_HOSTS, Racks, suspect, tournaments
from ddl.tuning.tournament import Rounds

__all__ = ["Tell", "find_racks"]

#: Called on all ranks with a text about the result.
Tell = Callable[[str], None]

_MESSAGE = 512 << 10  #: bytes
_TALK, _ROUND = 0.04, 0.1  #: seconds for which a pair exchanges data; of a typical round
_MOST_TOURNAMENTS = 8
_SHARE = 0.25  #: part of the time for the pairs, and again for the all-reduces that decide whether to use the racks
_LARGE = (16 << 20, 4 << 20, 1 << 20)  #: bytes of the all-reduce that racks must speed up; the largest that fits
_SMALL, _TOGETHER = 4 << 10, 16  #: bytes of the all-reduce that they must not slow down as much; calls timed together
_TURNS = 5  #: rounds of each series
_DEFAULT, _RACKS = 0, 1


def find_racks(control: Communicator, seconds: float, tell: Tell) -> Tuple[Communicator, Optional[Racks]]:
    """Return a communicator that is laid out by the racks of a job's hosts, and the racks, if they make it faster.

    Otherwise return ``control``, which is laid out by the hosts alone, and None. Racks are not searched for if the
    dimensions were given, if there are fewer than four hosts, or if hosts have different numbers of ranks. ``tell``
    gets the reason. Collective, blocking, for up to half of ``seconds``. All ranks return the same.
    """
    job, outer = control.job, control.topology.dimensions[-1]
    known, hosts = job.cluster().hosts, len(job.hosts)
    if job.settings.dimensions or not outer.size == hosts == len(known) >= FEWEST_HOSTS:
        return control, None
    shortest = (hosts - 1) * _ROUND / _SHARE
    if seconds < shortest:
        tell(f"racks: not searched for; for {hosts} hosts, measure for at least {math.ceil(shortest)} seconds")
        return control, None
    guess = suspect(_meet(control, [ranks[0] for ranks in job.hosts], _SHARE * seconds))
    if guess is None:
        tell("racks: none; while all hosts send at once, no group of hosts is clearly faster inside than to the others")
        return control, None
    # Neither of the two is `control`: the barriers between turns keep its connections warm, so it would be faster.
    default, laid_out = control._split(0), control._split(0, racks=guess.groups)
    assert default is not None and laid_out is not None  # every rank has the same color
    both = {_DEFAULT: default, _RACKS: laid_out}
    nbytes = _in_time(control, both, _SHARE * seconds)
    won, why = _race(control, both, nbytes) if nbytes else (None, "measure longer to see whether they help")
    if nbytes is None or won is None:
        tell(f"{guess.text(known)}; not used: {why}")
        return control, None
    racks = Racks(**vars(guess), nbytes=nbytes, seconds=won.seconds, default_seconds=won.default_seconds)
    tell(racks.text(known))
    return laid_out, racks


def _meet(control: Communicator, speakers: Sequence[int], seconds: float) -> np.ndarray:
    """Return the lowest rate of each pair of hosts: (hosts, hosts), bytes per second in each direction.

    ``speakers``: a rank of each host. The first tournament is always complete; others follow while there is time.
    """
    begin = clock.now()
    rates = np.full((len(speakers), len(speakers)), np.inf)
    for rounds in tournaments(len(speakers), _MOST_TOURNAMENTS):
        _play(control, speakers, rounds, rates)
        spent = np.array([clock.now() - begin])
        control.allreduce_(spent, op=Max)
        if spent[0] > seconds:
            break
    control.allreduce_(rates, op=Min)
    return rates


def _play(control: Communicator, speakers: Sequence[int], rounds: Rounds, rates: np.ndarray) -> None:
    """Play the rounds of one tournament. Lower the entries of ``rates`` of this rank's pairs to what was measured."""
    own, theirs = np.zeros((2, _MESSAGE // 4), np.float32)
    for pairs in rounds:
        pair = next((pair for pair in pairs if control.rank in (speakers[pair[0]], speakers[pair[1]])), None)
        if pair is None:
            control.barrier()
            continue
        leader, other = sorted(speakers[host] for host in pair)
        leads, peer = control.rank == leader, other if control.rank == leader else leader
        _exchange(control, peer, own[:1], theirs[:1])  # opens the connection
        control.barrier()
        rate = _talk(control, peer, leads, own, theirs)
        rates[pair] = rates[pair[::-1]] = min(rates[pair], rate)


def _talk(control: Communicator, peer: int, leads: bool, own: np.ndarray, theirs: np.ndarray) -> float:
    """Exchange messages until the leader marks one as the last. Return bytes per second in each direction."""
    own[0] = theirs[0] = count = 0
    begin = clock.now()
    while not (own[0] or theirs[0]):
        own[0] = leads and clock.now() - begin > _TALK
        _exchange(control, peer, own, theirs)
        count += 1
    return count * own.nbytes / (clock.now() - begin)


def _exchange(control: Communicator, peer: int, own: np.ndarray, theirs: np.ndarray) -> None:
    sent = control.send_async(own, peer)
    control.recv(theirs, peer)
    sent.wait()


def _in_time(control: Communicator, both: Mapping[int, Communicator], seconds: float) -> Optional[int]:
    """Return the bytes of the largest all-reduce that can be compared in about ``seconds``, or None."""
    least = _LARGE[-1]
    once = sum(medians_of(take_turns(control, both, _allreduce(control, both, least), 2, 1)).values())
    return next((nbytes for nbytes in _LARGE if 2 * _TURNS * once * nbytes / least <= seconds), None)


def _race(control: Communicator, both: Mapping[int, Communicator], nbytes: int) -> Tuple[Optional[RaceOutcome], str]:
    """Return the outcome if racks speed up an all-reduce of ``nbytes`` more than they slow down a small one.

    Otherwise return None and the reason.
    """
    large, _ = settle(control, both, _DEFAULT, _allreduce(control, both, nbytes), _TURNS, 1)
    if large.chosen == _DEFAULT:
        return None, f"an allreduce of {bytes_text(nbytes)} is not clearly faster with them"
    small, _ = settle(control, both, _RACKS, _allreduce(control, both, _SMALL), _TURNS, _TOGETHER)
    gain, loss = large.default_seconds / large.seconds, small.default_seconds / small.seconds
    if loss >= gain:
        times = f"{duration(small.default_seconds)}, without them {duration(small.seconds)}"
        return None, f"an allreduce of {bytes_text(_SMALL)} takes {times}: more than {gain:.1f} times as long"
    return large, ""


def _allreduce(control: Communicator, both: Mapping[int, Communicator], nbytes: int) -> TimedCalls:
    calls = TimedCalls(Collective.ALLREDUCE, control.rank, control.size, nbytes)
    check_results(control, {f"racks {both[_RACKS].topology}": both[_RACKS]}, calls)
    return calls
