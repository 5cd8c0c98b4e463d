"""``Peer``: how a process introduces itself to the others of its job, and which of them share memory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, List, Sequence, Set, Tuple

from ddl.bootstrap.cores import Cores
from ddl.bootstrap.peer_handshake import Nonce
from ddl.net.rails import RailOffer
from ddl.store.messages import said_by

__all__ = ["Peer", "sharing"]


@dataclass(frozen=True)
class Peer:
    """A rank as it introduces itself in the store."""

    rank: int
    host: str  # for people
    host_id: str  # ranks with different ones do not even try to share memory
    offers: Tuple[RailOffer, ...]  # its data listeners
    unix_name: str
    nonce: Nonce
    cores: Cores  # where it may run
    board_offset: int  # of the world communicator
    shared: bool  # shared memory is not switched off
    deterministic: bool
    encrypt: bool
    checksum: bool
    version: str

    def text(self) -> str:
        fields = dict(vars(self), nonce=[self.nonce.offset, self.nonce.text], cores=vars(self.cores))
        return json.dumps(fields)

    @staticmethod
    def parse(rank: int, text: str) -> Peer:
        """Undo ``text`` of ``rank``. ``ProtocolError`` if it is not what a rank says."""

        def parsed(fields: Any) -> Peer:
            offers = tuple(RailOffer(*offer) for offer in fields["offers"])
            cores = Cores(**fields["cores"])
            peer = Peer(**{**fields, "nonce": Nonce(*fields["nonce"]), "cores": cores, "offers": offers})
            places = [peer.nonce.offset, peer.board_offset, *(offer.port for offer in offers)]
            texts = [peer.host, peer.host_id, peer.unix_name, peer.version, peer.nonce.text]
            texts += [text for offer in offers for text in (offer.network, offer.address)]
            if peer.rank != rank or not offers or not all(type(place) is int and place >= 0 for place in places):
                raise ValueError("a number is wrong")
            if not all(isinstance(text, str) for text in texts):
                raise ValueError("a text is none")
            return peer

        return said_by(rank, text, parsed)


def sharing(members: Sequence[int], pairs: Set[Tuple[int, int]]) -> Tuple[Tuple[int, ...], ...]:
    """Group ranks that all share memory with one another; ``pairs`` are those that proved it."""
    groups: List[List[int]] = []
    for rank in members:
        for group in groups:
            if all((min(member, rank), max(member, rank)) in pairs for member in group):
                group.append(rank)
                break
        else:
            groups.append([rank])
    return tuple(tuple(group) for group in groups)
