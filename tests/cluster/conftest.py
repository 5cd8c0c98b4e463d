"""Clusters for tests, of any shape: ``@pytest.mark.parametrize("cluster", [TWO_RACKS], indirect=True)``.

``cluster`` is shared by the tests of a module that want the same shape; tests that break something use ``own_cluster``.
"""

from __future__ import annotations

from typing import Iterator

import pytest

from lab import TWO_HOSTS, Cluster


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, clusters_can_be_built: None) -> Iterator[Cluster]:
    with Cluster(getattr(request, "param", TWO_HOSTS)) as built:
        yield built


@pytest.fixture
def own_cluster(request: pytest.FixtureRequest, clusters_can_be_built: None) -> Iterator[Cluster]:
    with Cluster(getattr(request, "param", TWO_HOSTS)) as built:
        yield built
