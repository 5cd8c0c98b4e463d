"""One rank of ``ddl doctor``'s job: ``python -m ddl.tools.doctor.probe TASK``, started by survey.py.

The first rank of each host looks at its host and, when its turn comes, at the links to the others. Then all ranks prove
which of them share memory, as at the start of a job. Each result is printed at once, a JSON object per line after
``MARK``, so that it is not lost if a rank, a host or the network fails later.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import secrets
import sys
from typing import Any, Dict, List, Sequence, Tuple

from ddl.bootstrap.environ import Identity, Settings
from ddl.errors import Error
from ddl.launch.agent.reach import TOKEN, Attempt, Target, connect_all
from ddl.net.address import family_of
from ddl.net.encryption import prepare_encryption
from ddl.net.interfaces import Interface, interfaces
from ddl.net.rails import common_family
from ddl.store.store import StoreClient
from ddl.tools.doctor.facts import HostLink, Task
from ddl.tools.doctor.link import measure, schedule, try_large_packets
from ddl.tools.doctor.local import examine
from ddl.tools.doctor.responder import Responder

__all__ = ["MARK", "main"]

MARK = "ddl-doctor: "
_FIRST_ROUND = 1000  # check-ins of the store below are those of a job's start, which comes last
_TURN_SECONDS = 8.0  #: how long others wait for the host that measures before they go on without it
_PATIENT = 3600.0  #: seconds; survey.py ends a probe that takes too long
_BUDGET = 30.0  #: seconds in which all bandwidths of the job should be measured


class _Probe:
    def __init__(self, task: Task, identity: Identity, settings: Settings, store: StoreClient) -> None:
        self._task = task
        self._identity = identity
        self._store = store
        self._round = _FIRST_ROUND
        self._host = identity.cross_rank
        self._leads = identity.local_rank == 0
        self._chosen = settings.interface.partition(",")[0] or store.local_host

    def run(self) -> str:
        """Do everything but prove memory; return why the proof would fail, or ""."""
        with contextlib.ExitStack() as stack:
            offer: Dict[str, Any] = {"host": self._host}
            if self._leads:
                token = secrets.token_bytes(TOKEN)
                responder = Responder(self._identity.secret, token)
                stack.callback(responder.close)
                offer.update(token=token.hex(), ports=responder.ports, datagrams=responder.datagram_port)
                offer.update(chosen=self._chosen, interfaces=[dataclasses.asdict(entry) for entry in interfaces()])
            met = [json.loads(text) for text in self._meet(json.dumps(offer))]
            others = sorted((entry for entry in met if "token" in entry), key=lambda entry: int(entry["host"]))
            _keep_one_family(others)
            problem = ""
            if self._leads:
                chosen = {int(entry["host"]): str(entry["chosen"]) for entry in others}
                local = examine(self._task, chosen[self._host], chosen)
                _tell("local", local=dataclasses.asdict(local), host=self._host)
                problem = local.core_problem
            problems = self._meet(problem)
            if self._leads:
                self._look_at_links(others)
                _tell("finished", host=self._host)
            self._meet("measured", _PATIENT)  # until then the responders are needed
        return next((text for text in problems if text), "")

    def _meet(self, value: str, patience: float = 0.0) -> List[str]:
        self._round += 1
        return self._store.check_in(value, patience or self._task.patience, self._round)

    def _look_at_links(self, hosts: Sequence[Dict[str, Any]]) -> None:
        reached = self._reach([entry for entry in hosts if entry["host"] != self._host])
        present = [int(entry["host"]) for entry in hosts]
        turns = [(present[here], present[there]) for here, there in schedule(len(present))]
        sample = min(self._task.sample, max(0.01, _BUDGET / max(1, len(turns))))
        before = 0  # our last turn
        for number, (source, target) in enumerate(turns):
            if source != self._host:
                continue
            if number:
                with contextlib.suppress(TimeoutError):  # its host has its reasons, and we have our turn
                    self._store.get(f"doctor/turn/{number - 1}", _TURN_SECONDS * (number - before))
            before = number
            for link, place in reached.get(target, []):
                if not link.problem and not link.stranger:
                    got = measure(place, self._identity.secret, sample)
                    link = dataclasses.replace(link, **vars(got))
                _tell("link", link=dataclasses.asdict(link))
            self._store.set(f"doctor/turn/{number}", "")

    def _reach(self, hosts: Sequence[Dict[str, Any]]) -> Dict[int, List[Tuple[HostLink, Target]]]:
        """Connect to every address of every host, all at once, and say what can be said before anybody's turn."""
        names = {entry.address: entry for entry in interfaces()}
        places: List[Tuple[Dict[str, Any], Interface]] = []
        for entry in hosts:
            there = [Interface(**fields) for fields in entry["interfaces"]]
            if entry["chosen"] not in [interface.address for interface in there]:
                there.append(Interface("?", entry["chosen"]))  # loopback, say: it shall be seen not to work
            # An address that is ours, too, as a bridge of containers has it on every host, leads to ourselves.
            places += [(entry, interface) for interface in there if interface.address not in names]
        ports: Dict[Tuple[int, str], List[Target]] = {}
        for entry, interface in places:
            token = bytes.fromhex(entry["token"])
            ports[entry["host"], interface.address] = [
                Target(entry["host"], interface.address, port, token) for port in entry["ports"]
            ]
        attempts = connect_all([target for tried in ports.values() for target in tried])
        self._meet_leaders("connected")
        good = []
        for entry, interface in places:
            tried = [attempts[target] for target in ports[entry["host"], interface.address]]
            best = next((attempt for attempt in tried if not attempt.problem), tried[0])
            good.append((entry, interface, best, tuple(attempt.problem for attempt in tried)))
        return self._with_large_packets(good, names, ports)

    def _meet_leaders(self, value: str) -> None:
        """Wait until all have tried to connect. Only then load the network."""
        self._store.set(f"doctor/{value}/{self._host}", "")
        for host in range(self._identity.cross_size):
            with contextlib.suppress(TimeoutError):
                self._store.get(f"doctor/{value}/{host}", self._task.patience)

    def _with_large_packets(
        self,
        reached: Sequence[Tuple[Dict[str, Any], Interface, Attempt, Tuple[str, ...]]],
        by_address: Dict[str, Interface],
        ports: Dict[Tuple[int, str], List[Target]],
    ) -> Dict[int, List[Tuple[HostLink, Target]]]:
        usable = [
            (entry, interface, best) for entry, interface, best, _ in reached if not best.problem and not best.stranger
        ]
        targets = [
            Target(entry["host"], interface.address, entry["datagrams"], bytes.fromhex(entry["token"]))
            for entry, interface, _ in usable
        ]
        mtus = []
        for _, interface, best in usable:
            here = by_address.get(best.source)
            mtus.append(min(interface.mtu, here.mtu if here is not None else interface.mtu))
        passed = dict(zip(((t.host, t.address) for t in targets), try_large_packets(targets, mtus)))
        links: Dict[int, List[Tuple[HostLink, Target]]] = {}
        for entry, interface, best, problems in reached:
            host, here = int(entry["host"]), by_address.get(best.source)
            place = next(
                (t for t, problem in zip(ports[host, interface.address], problems) if not problem),
                ports[host, interface.address][0],
            )
            link = HostLink(
                source=self._host,
                target=host,
                address=interface.address,
                interface=here.name if here is not None else "",
                target_interface=interface.name,
                problem=best.problem,
                ports=problems,
                stranger=best.stranger,
                mtu=best.mtu,
                large=passed.get((host, interface.address)),
            )
            links.setdefault(host, []).append((link, place))
        return links


def _keep_one_family(hosts: Sequence[Dict[str, Any]]) -> None:
    """Leave of each host's addresses those of the version of IP that a job's data would take."""
    there = [[entry["chosen"], *(fields["address"] for fields in entry["interfaces"])] for entry in hosts]
    family = common_family(there)
    for entry in hosts:
        entry["interfaces"] = [fields for fields in entry["interfaces"] if family_of(fields["address"]) == family]
        if entry["interfaces"] and family_of(entry["chosen"]) != family:
            entry["chosen"] = entry["interfaces"][0]["address"]


def _prove_memory(identity: Identity, settings: Settings) -> Dict[str, Any]:
    """Start as a job does and return who shares memory with whom."""
    from ddl._comm.job import Job  # needs the native core, which may be what is wrong

    job = Job(identity, settings, 0)
    try:
        job.rendezvous(0)
        return {"groups": job.hosts}
    finally:
        job.close()


def _tell(kind: str, **fields: Any) -> None:
    print(MARK + json.dumps({"kind": kind, **fields}), flush=True)


def main() -> int:
    """Be one rank; return its exit status."""
    task = Task.parse(sys.argv[1])
    identity, settings = Identity.from_environ(), Settings.from_environ()
    encrypt = settings.encrypt
    prepare_encryption(encrypt, settings.openssl)
    with StoreClient(identity.store, identity.secret, identity.rank, task.patience, encrypt=encrypt) as store:
        problem = _Probe(task, identity, settings, store).run()
    proof: Dict[str, Any] = {"problem": f"the native core cannot be loaded: {problem}"}
    if not problem:
        try:
            proof = _prove_memory(identity, dataclasses.replace(settings, start_timeout=task.patience))
        except (Error, ImportError, OSError) as error:
            proof = {"problem": f"rank {identity.rank}: {error}"}
    if identity.rank == 0 or "problem" in proof:
        _tell("memory", **proof)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Error as error:  # the others, or the store; what is missing shows which host failed
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(1)
