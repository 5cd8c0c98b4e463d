"""``clusters_can_be_built``: for tests that build hosts of their own (lab); a plugin."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="session")
def clusters_can_be_built() -> None:
    """Skip where they cannot, with the reason; except in CI, where a test that never runs must be noticed."""
    from lab import why_not  # a machine for the tests of GPUs may lack what it needs

    reason = why_not()
    if reason is not None:
        if os.environ.get("CI", "").lower() not in ("", "0", "false"):
            pytest.fail(f"CI is set, and CI must be able to build clusters: {reason}", pytrace=False)
        pytest.skip(f"no cluster: {reason}")
