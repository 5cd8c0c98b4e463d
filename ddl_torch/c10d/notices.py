"""Short notices from rank to rank over torch's store, for what messages of ``ddl`` do not say: see messages.py.

Each rank has a numbered letter box in the store. From the first time that notices can matter, a thread reads it; it
sleeps in the store until one comes.
"""

from __future__ import annotations

import json
import threading
from datetime import timedelta
from typing import Any, Callable, List, Optional, Sequence, Tuple

from torch._C._distributed_c10d import PrefixStore, Store

from ddl import at_exit

__all__ = ["Notices"]

_LONG = timedelta(days=20)  # the most that poll(2) can be told; then again
_END = "end"
_LISTENING, _ENDED = "listening", "ended"  # what ranks with a thread have set, and when it has ended
_PATIENCE = timedelta(seconds=5)  # for the others' threads to end


class Notices:
    """The notices among the ranks of one group. Any thread may send.

    ``handle(source, notice)`` is called for each notice that comes, one at a time and in each source's order. When rank
    0, whose process mostly has the store, is the first to leave, it ends all threads: torch prints a stack trace
    where a store goes while somebody waits in it. It does that for ``size`` ranks, 0: none.
    """

    def __init__(self, store: Store, name: str, rank: int, size: int, handle: Callable[[int, List[Any]], None]) -> None:
        self._store, self._name, self._rank, self._handle = store, name, rank, handle
        self.possible = hasattr(store, "clone")  #: older versions of torch have no second connection to a store
        self._sending: Optional[Store] = None
        self._thread: Optional[threading.Thread] = None
        self._size = size if rank == 0 and self.possible else 0
        if self._size > 1:
            at_exit.register(self.close)
        self._lock = threading.Lock()
        self.error: Optional[Exception] = None  #: why none can come any more

    def send(self, to: int, *notice: Any) -> None:
        """Send ``notice``, which json can hold, to rank ``to``."""
        with self._lock:
            store = self._to_send()
            number = store.add(f"{to}", 1)
            store.set(f"{to}/{number}", json.dumps([self._rank, *notice]))

    def listen(self) -> None:
        """Handle what has come, and what comes from now on. Idempotent.

        It also connects for what this rank has to tell, at the latest when it leaves. Rank 0, whose process mostly has
        the store, may have ended by then, and torch tries for five minutes to reach a store that is gone.
        """
        if self._thread is None:
            with self._lock:
                self._to_send()
            store = self._connect()
            store.add(f"{_LISTENING}/{self._rank}", 1)  # other than set, there when it returns
            store.set_timeout(_LONG)
            self._thread = threading.Thread(target=self._run, args=(store,), name="ddl-torch", daemon=True)
            self._thread.start()

    def close(self, last: Sequence[Tuple[Any, ...]] = ()) -> None:
        """Send the ``last`` ones, each a rank and its notice, and end the thread. Idempotent."""
        at_exit.unregister(self.close)
        thread, self._thread = self._thread, None
        others, self._size = range(1, self._size), 0
        if (
            self._sending is None
        ):  # connect to nobody any more: torch would try for minutes to reach a store that is gone
            self._sending = PrefixStore(self._name, self._store)
        try:
            for to, *notice in last if self.possible else ():
                self.send(to, *notice)
            if thread is not None and self.error is None:
                self.send(self._rank, _END)
                thread.join(1.0)
            listeners = [rank for rank in others if self._sending.check([f"{_LISTENING}/{rank}"])]
            for rank in listeners:
                self.send(rank, _END)
            if listeners:
                self._sending.wait([f"{_ENDED}/{rank}" for rank in listeners], _PATIENCE)
        except RuntimeError as error:  # the store is gone; so are, or will be, the threads
            self.error = error
        self._sending = None  # and the connection

    def _to_send(self) -> Store:
        if self._sending is None:
            self._sending = self._connect()
        return self._sending

    def _connect(self) -> Store:
        """Return the store by a connection of its own: one that waits lets nobody else use it."""
        store: Any = self._store  # whose stubs do not know of clone
        return PrefixStore(self._name, store.clone())

    def _run(self, store: Store) -> None:
        number = 1
        while True:
            key = f"{self._rank}/{number}"
            try:
                source, *notice = json.loads(store.get(key))  # waits for it
                if notice != [_END]:
                    self._handle(source, notice)
                if notice == [_END]:
                    self.error = ConnectionError("a rank has left it")
                    store.set(f"{_ENDED}/{self._rank}", "")
                    return
                store.delete_key(key)
            except Exception as error:  # the thread that waits for a notice raises it
                self.error = error
                return
            number += 1
