"""What the answers to an inquiry (inquiry.py) show: which rank all wait for, and the words that say so.

The verdict (verdict.py) is what follows from it. Pure functions, of answers that have been checked.
"""

from __future__ import annotations

import collections
from typing import Callable, Collection, Dict, Iterable, List, Set, Tuple

from ddl.store.inquiry import Inquiry

__all__ = ["divide", "explain", "mismatch"]


def mismatch(said: Dict[int, str], seq: int, named: Callable[[Iterable[int]], str]) -> str:
    """Say that ranks have called different operations as number ``seq``; "" if they have not. ``named`` names ranks.

    Shown are the call that most ranks made, and one that differs. No rank is blamed: nobody knows which is wrong.
    """
    if len(set(said.values())) <= 1:
        return ""
    usual = collections.Counter(said.values()).most_common(1)[0][0]
    typical = next(rank for rank, op in said.items() if op == usual)
    odd = next(rank for rank, op in said.items() if op != usual)
    return f"{named([typical])} called {usual} but {named([odd])} called {said[odd]} as operation #{seq}"


def divide(
    apart: Set[Tuple[int, int]], hosts: Dict[int, str], named: Callable[[Iterable[int]], str], seconds: float
) -> Dict[int, str]:
    """Return the ranks to give up, and why: each pair in ``apart`` has not heard each other for so many ``seconds``.

    These are all ranks of one of ``hosts`` (of each rank): that which does not hear the most others. A host whose
    network fails in one direction still reaches the store, and complains of everybody. Of two alike it is the smaller
    one, and then the one that came later. The first rank is one of a pair.
    """
    if not apart:
        return {}
    ranks: Dict[str, List[int]] = {}
    for rank, host in sorted(hosts.items()):
        ranks.setdefault(host, []).append(rank)
    unheard = {host: {hosts[b] for a, b in apart if hosts[a] == host} for host in ranks}
    given_up = max(ranks, key=lambda host: (len(unheard[host]), -len(ranks[host]), ranks[host][0]))
    first = min(a for a, _ in apart if hosts[a] == given_up)
    reason = (
        f"and {named(b for a, b in apart if a == first)} have not heard each other for {seconds:g} s, though both "
        "reach the job's store; see whether the network between their hosts is broken, or a firewall is in the way "
        "(ddl doctor)"
    )
    mates = {rank: f"{named([first])} of its host {reason}" for rank in ranks[given_up]}
    return {first: f"it {reason}", **{rank: why for rank, why in mates.items() if rank != first}}


def explain(
    probing: Inquiry,
    seq: int,
    departed: Collection[int],
    silent_since: Callable[[int], int],
    named: Callable[[Iterable[int]], str],
) -> Tuple[int, str]:
    """Return whom all wait for in operation ``seq``, and why; -1 if it is no rank's fault.

    ``departed``: ranks that said goodbye owe no answer. ``silent_since``: of the ranks that do not answer, the one with
    the lowest number has been silent for longest. ``named`` names ranks.
    """
    answered = probing.states.keys() | probing.suspects.keys()
    silent = sorted(probing.members - answered - set(departed))
    if silent:
        verb, whose = ("does", "its host is") if len(silent) == 1 else ("do", "their hosts are")
        first = min(silent, key=lambda rank: (silent_since(rank), rank))
        return first, f"{named(silent)} {verb} not answer (stopped, or {whose} unreachable or very slow)"
    behind = {r: s for r, s in sorted(probing.states.items()) if 0 <= s["submitted"] < seq}
    behind = {r: s for r, s in behind.items() if r not in probing.suspects}
    if behind and all(state["held"] for state in behind.values()):
        verb = "has" if len(behind) == 1 else "have"
        return -1, f"{named(behind)} {verb} not called it before the change of ranks that is under way"
    behind = {r: s for r, s in behind.items() if not s["held"]}
    if behind:
        rank = min(behind)
        others = [other for other in behind if other != rank]
        more = f" ({named(others)} {'has' if len(others) == 1 else 'have'} not called it either)"
        doing = f"; it {behind[rank]['doing']}" if behind[rank]["doing"] else ""
        return rank, f"{named([rank])} has not called it{doing}{more if others else ''}"
    for rank, lack in probing.shortages().items():
        return rank, f"{named([rank])} cannot make the connections for it: {lack}"
    waiting = probing.awaiting_gpus()
    if waiting:
        gpus = "its GPU has" if len(waiting) == 1 else "their GPUs have"
        return waiting[0], f"{named(waiting)} called it, but {gpus} not copied the array to the host"
    asker = probing.suspects[probing.asker]
    if seq == 0:  # send and recv are not numbered: only the two sides know of them
        return asker["peer"], asker["reason"] or "the other side has not called its part"
    late = sorted(probing.suspects)
    verb = "has" if len(late) == 1 else "have"
    return -1, f"every rank answers and has called it, but {named(late)} {verb} not finished it"
