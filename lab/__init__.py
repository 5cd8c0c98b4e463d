"""A cluster on this machine: hosts, racks and rails made of this machine's namespaces. What they have: docs/cluster.md.

``shape.py`` says what can be built, ``cluster.py`` builds it, ``wiring.py`` is what ``ip`` and ``tc`` are told,
``namespaces.py`` enters a host, ``leftovers.py`` removes what a killed cluster left, ``system.py`` is what this machine
must have for it; ``keeper.sh`` and ``host.sh`` run as the first processes in there. ``up.py`` and ``enter.py`` are the
commands.
"""

from lab.cluster import Cluster
from lab.shape import FOUR_HOSTS, TWO_HOSTS, TWO_PAIRS, TWO_RACKS, TWO_RAILS, Shape, burst_bytes, parse_rate
from lab.system import PATIENCE, ClusterError, why_not

__all__ = [
    "FOUR_HOSTS",
    "PATIENCE",
    "TWO_HOSTS",
    "TWO_PAIRS",
    "TWO_RACKS",
    "TWO_RAILS",
    "Cluster",
    "ClusterError",
    "Shape",
    "burst_bytes",
    "parse_rate",
    "why_not",
]
