"""What a rank can ask the store: keys, counters, the check-in of all ranks, meetings of several. See requests.py.

A ``StoreClient`` (store.py) asks over a connection of its own. A rank that has a ``WatchClient`` (watch.py) asks over
that, so that its questions are answered as long as one of its networks works.
"""

from __future__ import annotations

import abc
import threading
from typing import List, Sequence, Tuple

from ddl import clock
from ddl.errors import InvalidArgument, InvalidState, LeftOut, PeerLost, ProtocolError, RendezvousError
from ddl.store.client import STORE_GRACE, Client
from ddl.store.messages import Message

__all__ = ["AskingClient"]


class AskingClient(Client, abc.ABC):
    """A client that asks. Any thread may; one request is under way at a time.

    Once the store is lost, or a request was interrupted, every later one raises PeerLost.
    """

    def __init__(
        self,
        role: str,
        address: str,
        secret: bytes,
        rank: int,
        timeout: float,
        encrypt: bool,
        others: Sequence[str] = (),
    ) -> None:
        super().__init__(role, address, secret, rank, timeout, encrypt, others)
        self._asking = threading.Lock()
        self._number = 0
        self._lost = ""

    @abc.abstractmethod
    def _say(self, request: Message, deadline: float) -> None:
        """Send a request. Raises PeerLost, RendezvousError."""

    @abc.abstractmethod
    def _next_answer(self, deadline: float) -> Message:
        """Return the next answer, or part of one. Raises PeerLost, ProtocolError, RendezvousError."""

    def set(self, key: str, value: str, timeout: float = 30.0) -> None:
        """Set a key; a key that exists is overwritten. InvalidArgument if key or value is too long."""
        self._ask({"ask": "set", "key": key, "value": value}, timeout)

    def get(self, key: str, timeout: float) -> str:
        """Return the value of ``key``, waiting until some rank sets it. TimeoutError after ``timeout`` seconds."""
        answer = self._ask({"ask": "get", "key": key, "timeout": timeout}, timeout)
        if answer.get("timeout"):
            raise TimeoutError(f"rank {self.rank}: no rank set {key!r} in the store within {timeout:g} s")
        return str(answer["value"])

    def count(self, key: str, timeout: float = 30.0) -> int:
        """Return how often anybody has counted ``key`` before: each call returns another number, from 0 up."""
        return int(self._ask({"ask": "count", "key": key}, timeout)["value"])

    def meet(self, ranks: Sequence[int], value: str, counter: str, timeout: float) -> Tuple[int, List[str]]:
        """Wait until all of ``ranks``, which pass the same ones, are in this call; return their values in that order.

        Also returned: what ``count(counter)`` would have, the same on all. Where one of them has waited for ``timeout``
        seconds, RendezvousError names the ranks that have not come, on all that wait; nothing of the attempt is left.
        It is raised at once where the process of one of them has ended.
        """
        who = ",".join(map(str, ranks))
        answer = self._ask({"ask": "meet", "ranks": who, "value": value, "key": counter, "timeout": timeout}, timeout)
        if "gone" in answer:
            raise RendezvousError(f"{answer['gone']} and did not come")
        if "missing" in answer:
            raise RendezvousError(f"{answer['missing']} did not come within {timeout:g} s")
        values: List[str] = answer["values"]
        if len(values) != len(ranks):
            raise ProtocolError(f"rank {self.rank}: the store sent {len(values)} values for {len(ranks)} ranks")
        return int(answer["count"]), values

    def check_in(self, value: str, timeout: float, round: int = 0) -> List[str]:
        """Post this rank's value and wait for all ranks; return all values in rank order. Collective.

        RendezvousError names the ranks that had not come when the first of the waiting ranks ran out of time, or the
        rank whose process has ended, at once; from then on the round has failed for every rank. Each check-in of a job
        needs a ``round`` of its own.
        """
        answer = self._ask({"ask": "check_in", "value": value, "timeout": timeout, "round": round}, timeout)
        if "gone" in answer:
            raise RendezvousError(
                f"rank {self.rank} of {self.size} checked in, but {answer['gone']} and did not come; "
                "see what it printed, and let every rank call init() as often as the others do"
            )
        if "missing" in answer:
            raise RendezvousError(
                f"rank {self.rank} of {self.size} checked in, but {answer['missing']}; "
                "see what they printed, or give them more time (DDL_START_TIMEOUT)"
            )
        values: List[str] = answer["values"]
        if len(values) != self.size:
            raise ProtocolError(f"rank {self.rank}: the store sent {len(values)} values for {self.size} ranks")
        return values

    def _ask(self, request: Message, timeout: float) -> Message:
        with self._asking:
            if self._lost:
                raise PeerLost(self._lost)
            if self.closed:
                raise InvalidState(f"rank {self.rank}: the store was asked for {request['ask']!r} after close()")
            deadline = clock.now() + timeout + STORE_GRACE
            self._number += 1
            # Whatever interrupts us here, also Ctrl-C, leaves an answer on its way that is not for the next request.
            self._lost = f"rank {self.rank}: a {request['ask']!r} request to the store was interrupted"
            try:
                self._say(dict(request, number=self._number), deadline)
                answer = self._answer(deadline)
            except (PeerLost, RendezvousError, ProtocolError) as error:
                self._lost = (
                    f"rank {self.rank}: lost the store at {self.address} (is ddlrun, or the program with the "
                    f"ddl.JobStore, still there?): {error}"
                )
                raise PeerLost(self._lost) from error
            self._lost = ""
        if "left_out" in answer:
            raise LeftOut(f"this process is in the job no more: {answer['left_out']}")
        if "error" in answer:
            raise InvalidArgument(f"rank {self.rank}: {request['ask']} in the store was refused: {answer['error']}")
        return answer

    def _answer(self, deadline: float) -> Message:
        values: List[str] = []
        while True:
            answer = self._next_answer(deadline)
            if "values" in answer:  # a part of the answer to a check-in or a meeting
                values += answer["values"]
                if not answer["last"]:
                    continue
                return dict(answer, values=values)
            if answer.get("number") != self._number:
                raise ProtocolError(f"the store answered request {answer.get('number')}, not {self._number}")
            return answer
