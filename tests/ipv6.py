"""For tests of IPv6: many containers have none, not even on loopback, and some kernels know nothing of it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

__all__ = ["KERNEL_KNOWS_IPV6", "needs_ipv6", "needs_kernel_with_ipv6"]


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
            return True
    except OSError:
        return False


needs_ipv6 = pytest.mark.skipif(not _has_ipv6(), reason="there is no IPv6 here")
#: For hosts of the lab, which have networks of their own.
KERNEL_KNOWS_IPV6 = Path("/proc/net/if_inet6").exists()
needs_kernel_with_ipv6 = pytest.mark.skipif(not KERNEL_KNOWS_IPV6, reason="this kernel has no IPv6")
