"""Clusters for tests, of any shape: ``@pytest.mark.parametrize("cluster", [TWO_RACKS], indirect=True)``.

``cluster`` is shared by the tests of a module that want the same shape; who breaks something uses ``own_cluster``.
"""

from __future__ import annotations

import os
from typing import Iterator

import pytest

from lab import TWO_HOSTS, Cluster, why_not


@pytest.fixture(scope="session")
def clusters_can_be_built() -> None:
    """Skip where they cannot, with the reason; except in CI, where a test that never runs must be noticed."""
    reason = why_not()
    if reason is not None:
        if os.environ.get("CI", "").lower() not in ("", "0", "false"):
            pytest.fail(f"CI is set, and CI must be able to build clusters: {reason}", pytrace=False)
        pytest.skip(f"no cluster: {reason}")


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, clusters_can_be_built: None) -> Iterator[Cluster]:
    with Cluster(getattr(request, "param", TWO_HOSTS)) as built:
        yield built


@pytest.fixture
def own_cluster(request: pytest.FixtureRequest, clusters_can_be_built: None) -> Iterator[Cluster]:
    with Cluster(getattr(request, "param", TWO_HOSTS)) as built:
        yield built
