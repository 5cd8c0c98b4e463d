"""Who meets whom when everybody is to meet everybody: a round-robin tournament. Pure."""

from __future__ import annotations

from typing import List, Optional, Sequence, Tuple

__all__ = ["Rounds", "tournament"]

#: Of each round, who meets whom.
Rounds = List[List[Tuple[int, int]]]


def tournament(players: Sequence[int]) -> Rounds:
    """Return the rounds, in each of which everybody meets one other, or nobody where the number of players is odd.

    It is the circle method: one player stays, all others move on by one seat, and who sits face to face meets.
    """
    seats: List[Optional[int]] = [*players, *([None] if len(players) % 2 else [])]
    rounds = []
    for _ in range(len(seats) - 1):
        faces = zip(seats[: len(seats) // 2], reversed(seats))
        rounds.append([(here, there) for here, there in faces if here is not None and there is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return rounds
