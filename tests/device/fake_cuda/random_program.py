"""Random programs of streams, events, copies, queries and host accesses, and a search for what nothing orders in them.

The search knows the rules by itself, and looks for paths in the graph of the whole program, which it has: so it can
judge the ledger, which sees one access after the other and keeps no graph.
"""

from __future__ import annotations

import random
from typing import List, NamedTuple, Set, Tuple

from device.fake_cuda.fake import Fake

BUFFER = 8


class _Access(NamedTuple):
    doer: int
    memory: int  # by number: device buffers first, then host buffers
    begin: int
    end: int
    writes: bool


class RandomProgram:
    """A program that runs while it is made. ``lucky``: each command at once; else later, as the seed has it.

    Afterwards ``unordered`` are the pairs of doers, in the order of the program, whose accesses conflict without a
    path between them. A doer is named as in the ledger's complaints: "#3" is the third command, "host-4" an access.
    """

    def __init__(self, fake: Fake, draw: random.Random, *, lucky: bool) -> None:
        self._fake, self._draw = fake, draw
        self._blocking = [True, False, *(draw.random() < 0.5 for _ in range(2))]
        self._streams = [0, *(fake.stream(blocking=blocks) for blocks in self._blocking[1:])]
        self._events = [fake.event() for _ in range(2)]
        self._memory = [*(fake.alloc(BUFFER) for _ in range(2)), *(fake.host(BUFFER).address for _ in range(2))]
        self._recorded: List[Set[int]] = [set(), set()]
        self._tails: List[Set[int]] = [set() for _ in self._streams]
        self._host: Set[int] = set()  # what the host knows
        self._past: List[Set[int]] = []  # of each doer
        self._names: List[str] = []
        self._commands = 0
        self._accesses: List[_Access] = []
        for _ in range(draw.randrange(4, 16)):
            draw.choice([self._record, self._wait, self._copy, self._copy, self._copy, self._query, self._touch])()
            fake.step(1000 if lucky else draw.choice([0, 0, 1]))
        fake.run()
        self.unordered = self._search()

    def _queue(self, where: int, before: Set[int]) -> int:
        """Note a command that the stream has queued; return its number among the doers."""
        before = before | self._tails[where] | self._host
        for other, tail in enumerate(self._tails):
            if other != where and ((where == 0 and self._blocking[other]) or (other == 0 and self._blocking[where])):
                before |= tail
        self._commands += 1
        number = self._add(f"#{self._commands}", before)
        self._tails[where] = before | {number}
        return number

    def _add(self, name: str, before: Set[int]) -> int:
        self._names.append(name)
        self._past.append(before)
        return len(self._past) - 1

    def _part(self) -> Tuple[int, int]:
        begin = self._draw.randrange(BUFFER)
        return begin, self._draw.randrange(begin + 1, BUFFER + 1)

    def _record(self) -> None:
        where, event = self._draw.randrange(4), self._draw.randrange(2)
        self._fake.record(self._events[event], self._streams[where])
        number = self._queue(where, set())
        self._recorded[event] = self._past[number] | {number}

    def _wait(self) -> None:
        where, event = self._draw.randrange(4), self._draw.randrange(2)
        self._fake.wait(self._streams[where], self._events[event])
        self._queue(where, self._recorded[event])

    def _copy(self) -> None:
        where, device, host = self._draw.randrange(4), self._draw.randrange(2), 2 + self._draw.randrange(2)
        begin, end = self._part()
        on_device, on_host = self._memory[device] + begin, self._memory[host] + begin
        down = self._draw.random() < 0.5
        if down:
            self._fake.copy_down(on_host, on_device, end - begin, self._streams[where])
        else:
            self._fake.copy_up(on_device, on_host, end - begin, self._streams[where])
        number = self._queue(where, set())
        self._accesses += [_Access(number, device, begin, end, not down), _Access(number, host, begin, end, down)]

    def _query(self) -> None:
        event = self._draw.randrange(2)
        if self._fake.event_done(self._events[event]):
            self._host |= self._recorded[event]

    def _touch(self) -> None:
        memory, writes = 2 + self._draw.randrange(2), self._draw.random() < 0.5
        begin, end = self._part()
        number = self._add(f"host-{len(self._past)}", set(self._host))
        self._fake.access(self._memory[memory] + begin, end - begin, writes=writes, who=self._names[number])
        self._host.add(number)
        self._accesses.append(_Access(number, memory, begin, end, writes))

    def _search(self) -> Set[Tuple[str, str]]:
        return {
            (self._names[a.doer], self._names[b.doer])
            for a in self._accesses
            for b in self._accesses
            if a.doer < b.doer and a.memory == b.memory and a.begin < b.end and b.begin < a.end
            if (a.writes or b.writes) and a.doer not in self._past[b.doer]
        }
