"""A round-robin tournament, in which each player meets each other player once. Pure."""

from __future__ import annotations

from typing import List, Optional, Sequence, Tuple

__all__ = ["Rounds", "tournament"]

#: For each round, the pairs that meet.
Rounds = List[List[Tuple[int, int]]]


def tournament(players: Sequence[int]) -> Rounds:
    """Return the rounds. In each round a player meets one other; if their number is odd, one player meets nobody.

    This is the circle method: one player stays, all others move by one seat, and players who face each other meet.
    """
    seats: List[Optional[int]] = [*players, *([None] if len(players) % 2 else [])]
    rounds = []
    for _ in range(len(seats) - 1):
        faces = zip(seats[: len(seats) // 2], reversed(seats))
        rounds.append([(here, there) for here, there in faces if here is not None and there is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return rounds
