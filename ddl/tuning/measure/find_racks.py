"""Finds racks by measurement: hosts talk in pairs, all at once, and who then gets little is behind another switch.

``ddl.tuning.racks`` says who meets whom and what to think of the rates; here are the clocks. What looks like racks is
used only if large all-reduces are faster with it: the same rule by which a line of the table takes the default's place.
"""

from __future__ import annotations

import math
import time
from typing import Callable, Mapping, Optional, Sequence, Tuple

import numpy as np

from ddl.communicator import Communicator
from ddl.plan.ir import Collective
from ddl.reduce_op import Max, Min
from ddl.text.units import bytes_text, duration
from ddl.tuning.measure.timed_calls import TimedCalls
from ddl.tuning.measure.turns import RaceOutcome, check_results, medians_of, settle, take_turns
from ddl.tuning.racks import FEWEST_HOSTS, Racks, suspect, tournaments
from ddl.tuning.tournament import Rounds

__all__ = ["Tell", "find_racks"]

#: Told on all ranks what came out, for people.
Tell = Callable[[str], None]

_MESSAGE = 512 << 10  #: bytes
_TALK, _ROUND = 0.04, 0.1  #: seconds for which a pair talks; of a round, as a rule
_MOST_TOURNAMENTS = 8
_SHARE = 0.25  #: of the time for measuring: for talking in pairs, and again for seeing whether racks are of use
_LARGE = (16 << 20, 4 << 20, 1 << 20)  #: bytes of the all-reduce that racks must make faster; the largest in time
_SMALL, _TOGETHER = 4 << 10, 16  #: bytes of the one that they must not slow down as much; calls timed together
_TURNS = 5  #: of each of the two, in each of the two series
_DEFAULT, _RACKS = 0, 1


def find_racks(control: Communicator, seconds: float, tell: Tell) -> Tuple[Communicator, Optional[Racks]]:
    """Return the racks of a job's hosts if it is of use to know them, and a communicator that is laid out by them.

    Otherwise return ``control``, which is laid out by the hosts alone. Racks are not looked for where the dimensions
    were given, nor among fewer than four hosts or hosts with different numbers of ranks. Collective, blocking, for up
    to half of ``seconds``. The same is returned on all ranks.
    """
    job, outer = control.job, control.topology.dimensions[-1]
    known, hosts = job.cluster().hosts, len(job.hosts)
    if job.settings.dimensions or not outer.size == hosts == len(known) >= FEWEST_HOSTS:
        return control, None
    shortest = (hosts - 1) * _ROUND / _SHARE
    if seconds < shortest:
        tell(f"racks: not looked for; for {hosts} hosts, measure for at least {math.ceil(shortest)} seconds")
        return control, None
    guess = suspect(_meet(control, [ranks[0] for ranks in job.hosts], _SHARE * seconds))
    if guess is None:
        tell("racks: none; no hosts get clearly more among themselves than from others where all talk at once")
        return control, None
    # Neither of the two is `control`, whose connections are warm from the barriers between turns: small calls show it.
    default, laid_out = control._split(0), control._split(0, racks=guess.groups)
    assert default is not None and laid_out is not None  # every rank has the same color
    both = {_DEFAULT: default, _RACKS: laid_out}
    nbytes = _in_time(control, both, _SHARE * seconds)
    won, why = _race(control, both, nbytes) if nbytes else (None, "measure longer to see whether it helps")
    if nbytes is None or won is None:
        tell(f"{guess.text(known)}; not used: {why}")
        return control, None
    racks = Racks(**vars(guess), nbytes=nbytes, seconds=won.seconds, default_seconds=won.default_seconds)
    tell(racks.text(known))
    return laid_out, racks


def _meet(control: Communicator, speakers: Sequence[int], seconds: float) -> np.ndarray:
    """Return what each pair of hosts got at worst, bytes per second each way; ``speakers``: a rank of each host.

    One tournament is played whatever it takes, others while there is time.
    """
    begin = time.perf_counter()
    rates = np.full((len(speakers), len(speakers)), np.inf)
    for rounds in tournaments(len(speakers), _MOST_TOURNAMENTS):
        _play(control, speakers, rounds, rates)
        spent = np.array([time.perf_counter() - begin])
        control.allreduce_(spent, op=Max)
        if spent[0] > seconds:
            break
    control.allreduce_(rates, op=Min)
    return rates


def _play(control: Communicator, speakers: Sequence[int], rounds: Rounds, rates: np.ndarray) -> None:
    """Meet whom this rank has to meet, and enter in ``rates`` what it got if it is less than what stands there."""
    own, theirs = np.zeros((2, _MESSAGE // 4), np.float32)
    for pairs in rounds:
        pair = next((pair for pair in pairs if control.rank in (speakers[pair[0]], speakers[pair[1]])), None)
        if pair is None:
            control.barrier()
            continue
        leader, other = sorted(speakers[host] for host in pair)
        leads, peer = control.rank == leader, other if control.rank == leader else leader
        _exchange(control, peer, own[:1], theirs[:1])  # makes the connection
        control.barrier()
        rate = _talk(control, peer, leads, own, theirs)
        rates[pair] = rates[pair[::-1]] = min(rates[pair], rate)


def _talk(control: Communicator, peer: int, leads: bool, own: np.ndarray, theirs: np.ndarray) -> float:
    """Exchange messages until the one who leads says in one that it is the last; return bytes per second each way."""
    own[0] = theirs[0] = count = 0
    begin = time.perf_counter()
    while not (own[0] or theirs[0]):
        own[0] = leads and time.perf_counter() - begin > _TALK
        _exchange(control, peer, own, theirs)
        count += 1
    return count * own.nbytes / (time.perf_counter() - begin)


def _exchange(control: Communicator, peer: int, own: np.ndarray, theirs: np.ndarray) -> None:
    sent = control.send_async(own, peer)
    control.recv(theirs, peer)
    sent.wait()


def _in_time(control: Communicator, both: Mapping[int, Communicator], seconds: float) -> Optional[int]:
    """Return the bytes of the largest all-reduce that can be raced in about ``seconds``, or None."""
    least = _LARGE[-1]
    once = sum(medians_of(take_turns(control, both, _allreduce(control, both, least), 2, 1)).values())
    return next((nbytes for nbytes in _LARGE if 2 * _TURNS * once * nbytes / least <= seconds), None)


def _race(control: Communicator, both: Mapping[int, Communicator], nbytes: int) -> Tuple[Optional[RaceOutcome], str]:
    """Return the outcome if an all-reduce of ``nbytes`` gains more by racks than a small one loses; else why not."""
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
