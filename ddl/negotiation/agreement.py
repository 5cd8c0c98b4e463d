"""Decides from the ballots of all ranks: every rank comes to the same result, so no rank has to send it. No I/O.

All ranks make the same rounds. In each round every rank gives a ballot. A rank that has submitted an operation which is
not in the table of known operations then sends its name and signature, once. A name that all ranks have submitted alike
is run, and is known from then on: the next time it takes one bit. If they submitted it differently, it fails on all.

Operations without a name run in the order in which ranks submit them: each is submitted under one name, ``UNNAMED``,
when the one before it has run or failed.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from functools import reduce
from operator import and_, or_
from typing import Any, Dict, FrozenSet, Iterable, List, Optional, Sequence, Set, Tuple

import numpy as np

from ddl.errors import ProtocolError
from ddl.negotiation import ballot
from ddl.negotiation.signature import Signature, checked

__all__ = ["Agreement", "Entry", "News", "RoundOutcome", "UNNAMED"]

UNNAMED = ""
_CAPACITY = 4096  #: known operations; the one that has not run for longest is forgotten

Entry = Tuple[str, Signature]
News = Sequence[Tuple[str, Sequence[Any]]]  #: names and signatures, as plain data


@dataclass
class RoundOutcome:
    """What one round has brought, in the order in which all ranks act on it."""

    run: List[Entry] = field(default_factory=list)
    failed: List[Tuple[str, str]] = field(default_factory=list)  #: names and why
    joined: FrozenSet[int] = frozenset()  #: ranks that supply nothing to ``run``
    last_joined: int = -1  #: if all ranks have joined: one that did so in the last round
    quiet: bool = False  #: nobody said anything new


class Agreement:
    """One rank's copy of what all ranks know, and what this rank has submitted itself.

    ``ranks[r]``: how people call rank ``r``: by its number in the job.
    """

    def __init__(self, ranks: Sequence[int], capacity: int = _CAPACITY) -> None:
        self._ranks = ranks
        self._size = size = len(ranks)
        self._capacity = capacity
        self._submitted: Dict[str, Signature] = {}
        self._bits = 0  #: those of mine that the table has
        self._news: Dict[str, Signature] = {}  #: those that it lacks, and that I have not said
        self._join = False
        self._ballot = ballot.pack(0, 0, 0)  #: of the last round
        self._flags = self._voted = 0  #: what it says
        self.fresh = False  #: this rank has something to say that it has not said
        # Alike on all ranks:
        self._table: List[Entry] = []
        self._numbers: Dict[Entry, int] = {}
        self._age: OrderedDict[int, None] = OrderedDict()  #: numbers, the one that ran last at the end
        self._said: Dict[str, Dict[int, Signature]] = {}  #: news that are pending, by name and rank
        self._joined: Set[int] = set()
        self._entries: List[int] = [0] * size  #: of the last round

    # --- this rank ---

    @property
    def waiting(self) -> bool:
        """Whether this rank waits for others: they may need its ballots."""
        return bool(self._submitted) or self._join

    def submit(self, name: str, signature: Signature) -> None:
        """Submit an operation; none of this name may be pending here."""
        assert name not in self._submitted, name
        self._submitted[name] = signature
        number = self._numbers.get((name, signature))
        if number is None:
            self._news[name] = signature
        else:
            self._bits |= 1 << number
        self.fresh = True

    def vote_alone(self, name: str, signature: Signature) -> Optional[np.ndarray]:
        """Submit an operation, and return this rank's ballot of the next round: quicker than ``submit`` and ``vote``.

        None, and nothing is done, if the table does not have it, or this rank waits for others already. After the
        round, call ``unanimous``, and if that is None, ``was_not_alone``.
        """
        number = None if self._submitted or self._join else self._numbers.get((name, signature))
        if number is None:
            return None
        self.fresh = False
        self._flags, self._voted = ballot.FRESH, 1 << number
        self._ballot = ballot.pack(ballot.FRESH, self._voted, len(self._table))
        return self._ballot

    def was_not_alone(self, name: str, signature: Signature) -> None:
        """Know what ``vote_alone`` has submitted: ``decide`` may not run it yet."""
        fresh = self.fresh
        self.submit(name, signature)
        self.fresh = fresh

    def join(self) -> None:
        """Say that this rank has no more data."""
        self._join = self.fresh = True

    def vote(self) -> Tuple[np.ndarray, News]:
        """Return this rank's ballot of the next round, and what it says besides if anybody has news."""
        flags = ballot.JOINED * self._join | ballot.FRESH * self.fresh
        news: News = ()
        if self._news:
            flags |= ballot.NEWS
            news = [(name, signature.plain()) for name, signature in self._news.items()]
            self._news.clear()
        self.fresh = False
        self._flags, self._voted = flags, self._bits
        self._ballot = ballot.pack(flags, self._bits, len(self._table))
        return self._ballot, news

    # --- all ranks ---

    def unanimous(self, ballots: np.ndarray) -> Optional[List[Entry]]:
        """Return what ``decide`` has run, if all ranks have submitted the same known operations; None: ask ``decide``.

        This is the usual case, and takes a small part of the time. ``ballots``: (ranks, bytes), uint8.
        """
        if self._flags != ballot.FRESH or ballots.tobytes() != self._ballot.tobytes() * self._size:
            return None
        self._entries = [self._voted] * self._size
        self._bits &= ~self._voted
        run = []
        for number in ballot.numbers(self._voted):
            entry = self._table[number]
            self._age.move_to_end(number)
            self._submitted.pop(entry[0], None)  # and nobody has said anything of it: all have voted for it
            run.append(entry)
        return run

    def decide(self, flags: Sequence[int], entries: List[int], news: Sequence[News] = ()) -> RoundOutcome:
        """Return what follows from all ballots, as ``ballot.unpack`` returns them, and the news of each rank."""
        all_flags = reduce(or_, flags)
        outcome = RoundOutcome(quiet=not all_flags & ballot.FRESH)
        self._entries = entries
        came: Set[int] = set()
        if all_flags & ballot.JOINED:
            came = {rank for rank, flag in enumerate(flags) if flag & ballot.JOINED} - self._joined
            self._joined |= came
        outcome.joined = frozenset(self._joined)
        for rank, said in enumerate(news):
            for name, signature in self._parsed(rank, said):
                self._said.setdefault(name, {})[rank] = signature
        everywhere = reduce(and_, entries)
        for number in ballot.numbers(everywhere):
            self._run(self._table[number], number, outcome.run)
        anywhere = reduce(or_, entries)
        if anywhere >> len(self._table):
            raise ProtocolError(f"a rank's ballot has bits of operations beyond the {len(self._table)} known ones")
        rest = anywhere & ~everywhere
        if rest or self._said:
            self._compare(rest, entries, outcome)
        if len(self._joined) == self._size:
            outcome.last_joined = max(came)
            self._joined.clear()
            self._join = False
        return outcome

    def _parsed(self, rank: int, said: Iterable[Sequence[Any]]) -> List[Entry]:
        """Return the news of a rank; ``ProtocolError`` if they are none."""
        try:
            return [(checked(name, str), Signature.parse(plain)) for name, plain in said]
        except (TypeError, ValueError) as error:
            raise ProtocolError(
                f"rank {self._ranks[rank]} submitted {said!r:.200}, which names no operations ({error})"
            ) from error

    def _compare(self, rest: int, entries: Sequence[int], outcome: RoundOutcome) -> None:
        """Settle what ranks have said in different ways: by a bit, by another one, in words, or by having joined."""
        pending = {name: dict(by_rank) for name, by_rank in self._said.items()}
        for number in ballot.numbers(rest):
            name, signature = self._table[number]
            by_rank = {rank: signature for rank in range(self._size) if entries[rank] >> number & 1}
            pending.setdefault(name, {}).update(by_rank)
        for name, by_rank in pending.items():
            if len(by_rank.keys() | self._joined) < self._size:
                continue
            signatures = set(by_rank.values())
            if len(signatures) > 1:
                outcome.failed.append((name, self._difference(by_rank)))
                self._forget(name)
            else:
                entry = (name, signatures.pop())
                self._run(entry, self._know(entry), outcome.run)

    def _run(self, entry: Entry, number: int, run: List[Entry]) -> None:
        self._age[number] = None
        self._age.move_to_end(number)
        run.append(entry)
        self._forget(entry[0])

    def _forget(self, name: str) -> None:
        """It is pending nowhere any more."""
        signature = self._submitted.pop(name, None)
        if signature is not None:
            self._bits &= ~(1 << self._numbers.get((name, signature), self._capacity))
        self._news.pop(name, None)
        self._said.pop(name, None)

    def _know(self, entry: Entry) -> int:
        """Return an operation's number in the table; one that has none gets one, if need be that of another."""
        number = self._numbers.get(entry, len(self._table))
        if number == self._capacity:
            number, _ = self._age.popitem(last=False)
            old, signature = self._table[number]
            del self._numbers[self._table[number]]
            if self._bits >> number & 1:  # from now on sent as text
                self._bits ^= 1 << number
                self._news[old] = signature
            self._table[number] = entry
        elif number == len(self._table):
            self._table.append(entry)
        self._numbers[entry] = number
        return number

    def missing(self, name: str) -> List[int]:
        """Return who (numbers in the job) had not submitted ``name`` in the last round, as far as this rank knows."""
        same_name = [number for number, entry in enumerate(self._table) if entry[0] == name]
        said = self._said.get(name, {}).keys() | self._joined
        return [
            self._ranks[rank]
            for rank in range(self._size)
            if rank not in said and not any(self._entries[rank] >> number & 1 for number in same_name)
        ]

    def _difference(self, by_rank: Dict[int, Signature]) -> str:
        first = min(by_rank)
        other = next(rank for rank in sorted(by_rank) if by_rank[rank] != by_rank[first])
        number = by_rank[first].differs(by_rank[other])
        texts = by_rank[first].text(number), by_rank[other].text(number)
        return f"rank {self._ranks[first]} submitted {texts[0]} but rank {self._ranks[other]} {texts[1]}"
