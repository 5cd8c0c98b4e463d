"""The training script of a simulated rank: steps with one collective each, and what it does when ranks change.

It does what ``ddl_torch.elastic.Training`` and ddl/_comm/elastic.py do: those that are behind take the state of those
that have finished the most steps, and a step that was broken off is done again. ``digest`` stands for the weights:
each step changes it, by who took part. ``history`` has the steps that led to it, and who took part in each.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, Callable, List, Optional, Tuple

from ddl.store.membership.records import GenerationRecord
from ddl.store.messages import Message
from ddl.store.verdict import ALL
from tests.simulation.collective import Operation

if TYPE_CHECKING:
    from tests.simulation.rank import SimRank

__all__ = ["NOTHING", "SimScript"]

NOTHING = -1  #: finished steps of a rank that has no state
_LISTENS = 1.0  # seconds between two looks which ranks are silent


class SimScript:
    """The script of ``rank``."""

    def __init__(self, rank: SimRank) -> None:
        self._rank = rank
        self._world = rank.world
        newcomer = rank.record is None
        self.state_name = "starting"
        self.finished = NOTHING if newcomer else 0
        self.digest = "" if newcomer else "start"
        self.history: List[Tuple[int, int, Tuple[int, ...]]] = []  #: (step, generation, members)
        self.generation: Optional[GenerationRecord] = rank.record
        self.operation: Optional[Operation] = None
        self.steps_since_heal = 0
        self.slow = 0.0  #: seconds that its next step takes longer
        self.sources: List[int] = []
        self._submitted = 0
        self._waits_after = -1
        self._held: Optional[GenerationRecord] = None
        self._turn = 0  # so that a timer of a former state is known
        self._broken = False
        self.making: Optional[GenerationRecord] = None

    def start(self) -> None:
        """The process is connected to the store."""
        if self.state_name == "starting":
            if self.generation is None:
                delay = self._world.chance.between(0.05, 1.5, f"load {self._rank.name}")
                self._later(delay, "loading", self._loaded)
            else:
                self._rank.meet_neighbours(self.generation)
                self._begin_step()

    def _loaded(self) -> None:
        self._world.counts["a newcomer has caught up"] += 1
        self._become("waiting")
        self._rank.caught_up()
        self._change()

    def _become(self, name: str) -> None:
        self.state_name = name
        self._turn += 1

    def _later(self, delay: float, name: str, action: Any) -> None:
        self._become(name)
        self._world.at(self._world.now + delay, self._rank.run, "script", self._due, self._turn, action)

    def _due(self, turn: int, action: Any) -> None:
        if turn == self._turn:
            action()

    # --- steps ---

    def _begin_step(self) -> None:
        machine = self._rank.participant
        machine.stop.finished = self.finished
        if machine.stop.is_planned:
            self._held = self._rank.record
            self._become("held")
            self._rank.step_finished(self.finished)
            return
        self._compute()

    def _compute(self) -> None:
        assert self.generation is not None
        luck = self._world.chance.between(
            0.1, 0.4, f"step {self._rank.name} {self.generation.generation} {self.finished}"
        )
        delay, self.slow = luck + self.slow, 0.0
        self._later(delay, "computing", self._reduce)

    def _reduce(self) -> None:
        if self._broken:
            self._change()
            return
        self._enter(self.finished + 1)

    def _enter(self, number: int) -> None:
        assert self.generation is not None
        self._become("in an operation")
        self._submitted = number + 1
        self.operation = self._world.collectives.enter(self._rank, self.generation, number)
        self._remind(self._world.schedule.deadline, self._complain)
        self._remind(_LISTENS, self._listen)
        for member in self.generation.members:
            if not self._world.ranks[member].alive and self._world.ranks[member].host not in self._world.network.off:
                self._world.at(self._world.now + 0.01, self._rank.run, "data", self.peer_lost, member, "refused")

    def operation_ended(self, operation: Operation) -> None:
        """The collective has ended on this rank."""
        if self.operation is not operation or self.generation is None:
            return
        self.operation = None
        operation.ended.add(self._rank.incarnation)
        if operation.number == 0:
            self._have_state(operation)
        else:
            step, members = operation.number, self.generation.members
            text = f"{self.digest} {step} {self.generation.generation} {members}"
            self.digest = hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
            self.finished = step
            self.history = [*self.history, (step, self.generation.generation, members)]
            self._world.note(self._rank.name, f"finished {step}")
            self._world.checker.finished(self._rank, operation)
            if self._world.healed_at is not None:
                self.steps_since_heal += 1
        self._begin_step()

    def _remind(self, seconds: float, action: Callable[[], None]) -> None:
        """Let the engine do something after so long, if this rank still waits in this operation."""
        self._world.at(self._world.now + seconds, self._rank.run, "engine", self._due, self._turn, action)

    def _listen(self) -> None:
        """Look whether there are ranks that this one does not hear."""
        if self._unheard():
            self._ask(final=False)
        self._remind(_LISTENS, self._listen)

    def _unheard(self) -> List[int]:
        assert self.generation is not None
        hosts = self._world.network.unheard(self._rank.host)
        return [member for member in self.generation.members if self._world.ranks[member].host in hosts]

    def _complain(self) -> None:
        """An operation takes too long."""
        self._ask(final=True)
        self._remind(self._world.schedule.deadline, self._complain)

    def _ask(self, final: bool) -> None:
        """Let the store find out what this operation waits for."""
        assert self.operation is not None
        message = self._suspicion("stalled", self.operation.number + 1)
        said = {"op": "allreduce", "final": final, "peer": -1, "reason": "", "unheard": self._unheard()}
        self._rank.tell_store({**message, **said})

    def _suspicion(self, kind: str, sequence: int) -> Message:
        assert self.generation is not None
        members = list(self.generation.members)
        return {
            "type": "suspect",
            "kind": kind,
            "comm": self.generation.generation,
            "seq": sequence,
            "members": members,
        }

    def state(self, probe: Message) -> Message:
        """Answer the store, which asks what this rank is in."""
        number = self.generation.generation if self.generation is not None else -1
        submitted = self._submitted if number == probe["comm"] else 0
        text = "allreduce" if submitted >= probe["seq"] else ""
        held = self._rank.participant.is_held
        unheard = self._unheard() if number == probe["comm"] else []
        said = {"submitted": submitted, "op": text, "held": held, "unheard": unheard}
        return {"type": "state", "probe": probe["probe"], **said}

    def peer_lost(self, peer: int, why: str) -> None:
        """A data connection has ended."""
        generation = self.generation
        if generation is None or peer not in generation.members or self.operation is None:
            return
        suspicion = self._suspicion("lost", self.operation.number + 1)
        self._rank.tell_store({**suspicion, "peer": peer, "reason": why})

    # --- what breaks it off ---

    def failed(self, failure: Message) -> None:
        """The store has made a verdict."""
        generation = self.generation
        if generation is None:
            return
        concerns = failure["comm"] in (ALL, generation.generation)
        if concerns and (failure["culprit"] < 0 or failure["culprit"] in generation.members):
            self.broken()

    def broken(self) -> None:
        """The communicators of this generation are over."""
        self._broken = True
        operation, self.operation = self.operation, None
        if operation is not None:
            self._world.counts["an operation was broken off"] += 1
            self._world.collectives.withdraw(self._rank, operation)
            delay = self._world.chance.between(0.001, 0.01, f"raise {self._rank.name} {operation.number} {self._turn}")
            self._later(delay, "raising", self._change)

    # --- changes ---

    def _change(self) -> None:
        self._waits_after = self.generation.generation if self.generation is not None else -1
        self._wait()

    def _wait(self) -> None:
        self._become("waiting")
        self._rank.wants_next(self._waits_after)
        self.look()

    def look(self) -> None:
        """Something has happened: go on, if it is what was waited for."""
        machine, record = self._rank.participant, self._rank.record
        if machine.over and self.state_name in ("held", "waiting", "installing", "loading", "computing", "raising"):
            self._exit()
        elif self.state_name == "held":
            if self._rank.record is not self._held or machine.stop.is_reached:
                self._change()
            elif machine.stop.may_begin:
                self._compute()
        elif self.state_name == "waiting" and record is not None and record.generation > self._waits_after:
            delay = self._world.chance.between(0.005, 0.05, f"install {self._rank.name} {record.generation}")
            self._later(delay + self.slow, "making", lambda: self._install(record))
            self.slow, self._broken = 0.0, False  # its new communicators are whole
        elif self.state_name == "installing":
            assert record is not None
            went = self._rank.went
            if went is not None and went[0] == self._waits_after:
                self._conclude(went[1])
            elif record.generation > self._waits_after:
                self._wait()

    def _install(self, record: GenerationRecord) -> None:
        if self._rank.over:
            self._exit()
            return
        self._rank.meet_neighbours(record)
        self._waits_after = record.generation
        self.making = record
        self._become("installing")
        newcomer = self.generation is None
        value = json.dumps({"finished": self.finished, "digest": self.digest, "newcomer": newcomer})
        self._rank.installed(record.generation, value)

    def _conclude(self, values: List[Any]) -> None:
        said = {int(member): json.loads(value) for member, value in values}
        assert self.making is not None
        self.generation, self._submitted = self.making, 0
        for failure in self._rank.failures:
            self.failed(failure)
        newest = max(state["finished"] for state in said.values())
        if newest == NOTHING:
            self._world.counts["nobody had the state"] += 1
            self._world.checker.state_is_lost(self._rank, self.generation)
            self._rank.crash()
            return
        self.sources = [member for member in self.generation.members if said[member]["finished"] == newest]
        if self._broken:
            self._change()
        elif min(state["finished"] for state in said.values()) == newest:
            self._begin_step()
        else:
            if said[self._rank.incarnation]["finished"] < newest:
                self.finished, self.digest, self.history = NOTHING, "", []
                self._world.counts["a rank took the state of another"] += 1
            self._enter(0)

    def _have_state(self, operation: Operation) -> None:
        source = self.sources[0]
        if self.finished == NOTHING:
            self.finished, self.digest = operation.entered[source]
            self.history = self._world.ranks[source].script.history[: self.finished]

    def _exit(self) -> None:
        """The script ends with an error, or because it was asked to."""
        self._become("ended")
        self._world.note(self._rank.name, f"exits: {self._rank.over}")
        asked = self._rank.participant.asked_to_leave
        if asked or self._world.chance.at(f"exit {self._rank.name}") < 0.5:
            self._rank.leave()
        else:
            self._world.at(self._world.now + 0.01, self._rank.run, "exit", self._rank.crash)
