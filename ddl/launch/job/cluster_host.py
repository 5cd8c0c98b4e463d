"""One of the hosts of a job, on ddlrun's side: whether it is fit, and what its agent has said."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from typing import Dict, List, Set, Tuple

from ddl._version import __version__
from ddl.launch.job.elastic_events import StartProcess
from ddl.net.address import parse_address
from ddl.store.messages import Message
from ddl.text.rank_names import name_ranks

__all__ = ["ClusterHost"]


@dataclass
class ClusterHost:
    """One host, its agent, and what came from it."""

    number: int
    name: str
    ranks: Tuple[int, ...]
    said: Dict[str, Message] = field(default_factory=dict)  # by type, of the messages before the start
    done: bool = False
    gone: str = ""  # why it cannot say any more how its ranks ended
    unasked: Dict[int, int] = field(default_factory=lambda: {1: 0, 2: 0})  # bytes to be confirmed, by stream

    # In an elastic job:
    going: bool = False  # it has been told to begin
    due: float = 0.0  # when it must have come so far
    waiting: List[StartProcess] = field(default_factory=list)  # until it is going
    running: Set[int] = field(default_factory=set)  # incarnations
    returns: int = 0  # how often it has called again

    @property
    def over(self) -> bool:
        return self.done or bool(self.gone)

    def returned(self, due: float) -> ClusterHost:
        """Return the new one with its number and name, of which nothing else is known."""
        return ClusterHost(self.number, self.name, (), due=due, returns=self.returns + 1)

    def source(self, number: int) -> Tuple[int, ...]:
        """Return by which name the sinks know a source of lines, of which the agent has said the number."""
        return self.number, self.returns, number

    @property
    def token_port(self) -> Message:
        """As the other hosts are told of it."""
        ready = self.said["ready"]
        return {"number": self.number, "name": self.name, "addresses": ready["addresses"], "token": ready["token"]}

    @property
    def ips(self) -> List[str]:
        """The addresses at which its ranks may take data, the best first; none before it is ready."""
        return [parse_address(text)[0] for text in self.said.get("ready", {}).get("addresses", ())]

    @property
    def label(self) -> str:
        return f"host {self.name} ({name_ranks(self.ranks)})"

    def misfit(self) -> str:
        """Return in which way it does not fit, now that its agent has said hello; "": it fits."""
        hello = self.said["hello"]
        python = ".".join(platform.python_version_tuple()[:2])
        if hello["version"] != __version__:
            return f"host {self.name} has DDL {hello['version']}, this one {__version__}; install the same one"
        if ".".join(hello["python"].split(".")[:2]) != python:
            return f"host {self.name} has Python {hello['python']}, this one {python}; use the same one"
        return ""
