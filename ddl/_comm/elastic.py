"""Takes a job from one generation of ranks to the next, and keeps its connections and memory.

A survivor keeps its agent, its listeners, the store, its arena and the mapped arenas of its host. The native core with
its board is new, and so are the data connections that operations need: the old ones may still carry bytes of the old
generation. ``docs/elastic.md`` says who decides what; ddl/bootstrap/generations.py drives it.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import socket
from typing import Any, Callable, Dict, List, Tuple

from ddl import clock
from ddl._comm.group import Group
from ddl._comm.job import Job
from ddl._comm.peer import Peer
from ddl.bootstrap.agent import Agent
from ddl.bootstrap.environ import Identity
from ddl.bootstrap.generations import Effects
from ddl.bootstrap.peer_handshake import connect_data
from ddl.bootstrap.plain_end import plain_end
from ddl.errors import ConfigError, Error, InternalError, InvalidArgument, PeerLost
from ddl.store.membership.records import GenerationRecord
from ddl.store.messages import said_by

__all__ = ["SAID_LIMIT", "advance", "arrive", "connect_to_members"]

log = logging.getLogger("ddl")

SAID_LIMIT = 2000  #: characters of JSON that a member may say to the others at a change
_CALL_SECONDS = 2.0  # to call another member about a new store, or for its state
_SOURCES = 8  # members that give their state to a process that joins


def arrive(job: Job) -> Group:
    """Let a process that was started later come to the job that runs. Return a group of this process alone.

    It is no member yet: it becomes one by ``advance``, when its program is ready. Until then it is named as if it were
    the next rank after the present ones; collectives do nothing.
    """
    job.come(0)  # its board is made with its communicator
    if job.generations is None:
        raise ConfigError("DDL_INCARNATION is set, but not DDL_ELASTIC=1; ddlrun sets both")
    first = job.generations.record.members[:1]
    known = {number: _peer(job, number, clock.now() + _CALL_SECONDS) for number in first}
    for peer in known.values():
        job.put_first(peer.offers[0].network)  # it may have found the store over another one, where that is lost
    job.introduce({job.number: job.me, **known})
    job.check_fit()  # else the others could not work with this process, and would begin again and again
    job.members, job.hosts, job.is_member = (job.number,), ((job.number,),), False
    rank = len(job.generations.record.members)
    job.identity = dataclasses.replace(job.identity, rank=rank, size=rank + 1)
    begin(job)
    core = Group.make_core(job, 0, 1)
    return Group.world(job, core, [core.board_offset])


def begin(job: Job) -> None:
    """Let this process take part in the decisions about the job's ranks, once it knows the others."""
    generations, agent, me = job.generations, job.agent, job.me
    assert generations is not None and agent is not None
    job.ask(lambda store: store.set(_key(job.number), me.text()))
    generations.begin(
        Effects(
            to_store=agent.tell,
            to_member=lambda number, message: _call(job, number, message),
            follow=lambda address, seconds, wanted: _follow(job, me, agent, address, seconds, wanted),
            break_all=agent.break_all,
        )
    )


def _key(number: int) -> str:
    return f"peer/{number}"


def _call(job: Job, number: int, message: Dict[str, Any]) -> None:
    hello = {"member": job.number, "said": message}
    deadline = clock.now() + _CALL_SECONDS
    places = [job.address(number, rail) for rail in range(len(job.rails))]  # some may be lost
    connect_data(places, job.secret, hello, deadline, encrypt=job.settings.encrypt).close()


def _follow(
    job: Job, me: Peer, agent: Agent, address: str, seconds: float, wanted: Callable[[], bool]
) -> Callable[[], bool]:
    """Connect to the store at ``address``, which was elected, and tell it what it cannot know. See ``Effects``."""
    main, *others = address.split(",")
    watch = job.connect_to_store(main, seconds, others)
    with job.following:  # one after the other: the store of an older election must not come last
        if not wanted():
            watch.close()
            return lambda: True
        agent.follow(watch)
        job.use_store(watch)
    watch.set(_key(job.number), me.text())  # only now is it heard what the store answers
    return lambda: watch.over


def advance(job: Job, said: Dict[str, Any]) -> Tuple[Group, Dict[int, Any]]:
    """Come to the next generation, with all its members; return its group, and what each rank ``said``. Blocking.

    ``said``: what JSON can hold, for all. Raises ``LeftOut`` where this process is left out or the job ends,
    ``RendezvousError`` where it takes longer than the job's patience. A process that joins waits as long as the job
    goes on: the members may be in a long step.
    """
    generations = job.generations
    assert generations is not None
    text = json.dumps(said)
    if len(text) > SAID_LIMIT:
        raise InvalidArgument(f"{len(text)} characters for all members of a generation; at most {SAID_LIMIT}")
    began = clock.now()
    after = job.generation if job.is_member else -1
    if not job.is_member:
        generations.caught_up()
    patience = generations.limits.patience + generations.limits.script_patience
    while True:
        record = generations.next_record(after, patience if job.is_member else None)
        identity = _learn(job, record)
        core = Group.make_core(job, identity.rank, identity.size)
        met = job.meet_neighbours(job.me, clock.now() + job.settings.start_timeout)
        value = json.dumps({"board": core.board_offset, "met": met, "said": text})
        answers = generations.install(record, value, patience)
        if answers is not None:
            result = _conclude(job, record, core, answers)
            job.paused_seconds += clock.now() - began
            job.record_identity()
            return result
        after = record.generation


def _learn(job: Job, record: GenerationRecord) -> Identity:
    """Take in who is in ``record``: newcomers have introduced themselves in the store."""
    if job.number not in record.members:
        raise InternalError(f"process {job.number} is to make {record}, which it is not in")
    deadline = clock.now() + job.settings.start_timeout
    unknown = [number for number in record.members if number not in job.peers]
    job.introduce({number: _peer(job, number, deadline) for number in unknown})
    job.members = record.members
    job.choose_rails()  # all of its networks must be those of all members
    hosts = {number: (job.peers[number].host, job.peers[number].host_id) for number in record.members}
    distinct = list(dict.fromkeys(hosts.values()))
    here = hosts[job.number]
    job.identity = dataclasses.replace(
        job.identity,
        rank=record.members.index(job.number),
        size=len(record.members),
        local_size=sum(host == here for host in hosts.values()),
        cross_rank=distinct.index(here),
        cross_size=len(distinct),
    )
    return job.identity


def _peer(job: Job, number: int, deadline: float) -> Peer:
    text = job.ask(lambda store: store.get(_key(number), max(0.1, deadline - clock.now())))
    return Peer.parse(number, text)


def connect_to_members(job: Job) -> List[socket.socket]:
    """Connect a process that joins to some of the members, those that can be reached, for their state. Blocking.

    Raises ``PeerLost`` where there is none.
    """
    assert job.generations is not None
    members = job.generations.record.members
    deadline = clock.now() + _CALL_SECONDS
    socks: List[socket.socket] = []
    for number in members[:: -(-len(members) // _SOURCES)]:
        try:
            # The rails are not known yet. What led to the store will lead to them; else any address that we can use.
            families, network = [own.family for own in job.me.offers], job.network_of_store
            offers = _peer(job, number, deadline).offers
            best = sorted(offers, key=lambda each: (each.network != network, each.family not in families))
            hello = {"follows": job.number}
            places = [(offer.address, offer.port) for offer in best]
            settings = job.settings
            sock = connect_data(places, job.secret, hello, deadline, settings.congestion, encrypt=settings.encrypt)
            try:
                socks.append(plain_end(sock))
            except BaseException:
                sock.close()
                raise
        except (OSError, Error) as error:
            log.info("process %d cannot ask process %d for the state of the job: %s", job.number, number, error)
    if not socks:
        raise PeerLost("no member of the job can be reached")
    return socks


def _conclude(
    job: Job, record: GenerationRecord, core: Any, answers: List[Tuple[int, str]]
) -> Tuple[Group, Dict[int, Any]]:
    """All members are ready: make the group, and forget the processes that are not in it any more."""
    said = {number: said_by(number, value, _checked) for number, value in answers}
    job.generation = job.round = record.generation
    job.is_member = True
    job.forget_all_but(record.members)
    job.conclude({number: met for number, (_, met, _) in said.items()})
    group = Group.world(job, core, [said[number][0] for number in record.members])
    return group, {rank: said[number][2] for rank, number in enumerate(record.members)}


def _checked(value: Any) -> Tuple[int, List[int], Any]:
    return int(value["board"]), [int(number) for number in value["met"]], json.loads(value["said"])
