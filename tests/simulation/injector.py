"""Brings the faults of a schedule about. A victim is named by its place among those that are alive."""

from __future__ import annotations

from typing import TYPE_CHECKING, List, Optional, Tuple

from ddl.store.messages import Message
from tests.simulation.faults import Fault
from tests.simulation.process import Crashed, SimProcess
from tests.simulation.rank import SimRank

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["Injector"]


class Injector:
    """Does the faults of ``world.schedule``."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._partitions: List[List[Tuple[int, int]]] = []
        for place, fault in enumerate(world.schedule.faults):
            world.at(fault.at, self._strike, place, fault)

    def stop(self) -> None:
        """Let nothing go wrong any more, and mend what can be."""
        world = self._world
        world.on_send.clear()
        world.network.heal_all(set(range(world.host_count)))
        world.network.slow.clear()
        for process in [world.launcher, *world.ranks.values()]:
            process.resumes_at = min(process.resumes_at, world.now)
            process.resume()

    def _strike(self, place: int, fault: Fault) -> None:
        if self._world.healed_at is not None:
            return
        self._world.note("fault", str(fault))
        self._world.counts["fault " + fault.kind] += 1
        getattr(self, "_" + fault.kind)(fault)

    def _rank(self, place: int) -> Optional[SimRank]:
        alive = self._world.alive()
        return alive[place % len(alive)] if alive else None

    def _crash(self, fault: Fault) -> None:
        rank = self._rank(fault.who)
        if rank is not None:
            rank.touched = True
            rank.crash()

    def _at_send(self, fault: Fault, only: Optional[SimProcess], pause: bool) -> None:
        left = [fault.count]
        number = self._world.chance.at(f"before or after {fault}") < 0.5

        def watch(process: SimProcess, message: Message, sent: bool) -> None:
            wrong = only is not None and process is not only
            if wrong or message["type"] != fault.message or sent is not number or left[0] <= 0:
                return
            left[0] -= 1
            if left[0] == 0:
                process.touched = True
                self._world.counts[f"struck at {fault.message}"] += 1
                if pause:
                    process.pause(fault.seconds)
                else:
                    raise Crashed

        self._world.on_send.append(watch)

    def _crash_at_send(self, fault: Fault) -> None:
        self._at_send(fault, None, pause=False)

    def _pause_at_send(self, fault: Fault) -> None:
        self._at_send(fault, None, pause=True)

    def _store_crash_at_send(self, fault: Fault) -> None:
        store = self._world.store()
        self._at_send(fault, store.process if store is not None else None, pause=False)

    def _store_crash(self, fault: Fault) -> None:
        store = self._world.store()
        if store is not None:
            store.process.touched = True
            store.process.crash()

    def _store_pause(self, fault: Fault) -> None:
        store = self._world.store()
        if store is not None:
            store.process.pause(fault.seconds)

    def _touch_hosts(self) -> None:
        for rank in self._world.ranks.values():
            rank.touched = True

    def _host_off(self, fault: Fault) -> None:
        world = self._world
        host = fault.who % world.host_count
        if host in world.network.off or len(world.network.off) + 1 >= world.host_count:
            return
        world.network.turn_off(host)
        for process in [world.launcher, *world.ranks.values()]:
            if process.host == host:
                process.touched = True
                process.crash()

    def _reset(self, fault: Fault) -> None:
        rank = self._rank(fault.who)
        if rank is not None:
            rank.reset_store()

    def _data_reset(self, fault: Fault) -> None:
        rank, other = self._rank(fault.who), self._rank(fault.other)
        if rank is not None and other is not None and rank is not other:
            rank.touched = other.touched = True
            rank.run("data", rank.script.peer_lost, other.incarnation, "connection reset")

    def _partition(self, fault: Fault) -> None:
        hosts = range(self._world.host_count)
        inside = [host for host in hosts if (fault.other + 1) >> host & 1]
        outside = [host for host in hosts if host not in inside]
        self._cut([(a, b) for a in inside for b in outside] + [(b, a) for a in inside for b in outside], fault)

    def _one_way(self, fault: Fault) -> None:
        first, second = fault.who % self._world.host_count, fault.other % self._world.host_count
        if first != second:
            self._cut([(first, second)], fault)

    def _cut(self, pairs: List[Tuple[int, int]], fault: Fault) -> None:
        if not pairs:
            return
        self._touch_hosts()
        self._world.network.block(pairs)
        self._world.at(self._world.now + fault.seconds, self._world.network.heal, pairs)

    def _pause(self, fault: Fault) -> None:
        rank = self._rank(fault.who)
        if rank is not None:
            rank.pause(fault.seconds)

    def _slow(self, fault: Fault) -> None:
        host = fault.who % self._world.host_count
        self._touch_hosts()
        self._world.network.slow[host] = 20.0
        self._world.at(self._world.now + fault.seconds, self._world.network.quicken, host)

    def _join(self, fault: Fault) -> None:
        self._world.join(fault.who % self._world.host_count)

    def _remove(self, fault: Fault) -> None:
        rank, store = self._rank(fault.who), self._world.store()
        if rank is not None and store is not None:
            store.process.run("remove", store.remove, rank.incarnation)

    def _goodbye(self, fault: Fault) -> None:
        rank = self._rank(fault.who)
        if rank is not None:
            rank.touched = rank.leaves = True
            rank.run("script", rank.leave)

    def _slow_script(self, fault: Fault) -> None:
        rank = self._rank(fault.who)
        if rank is not None:
            rank.touched = True
            rank.script.slow = fault.seconds
