"""What a machine that is too slow for all tests leaves out: after ``SLOW_TESTS_UNTIL`` those marked ``slow``; a plugin.

CI sets it (seconds since 1970): one machine took four times as long as another for the same tests, and a run that does
not end tells nothing. On a machine of usual speed all tests have begun before that.
"""

from __future__ import annotations

import os
import time

import pytest


@pytest.hookimpl(tryfirst=True)  # before its fixtures, which may be slow as well
def pytest_runtest_setup(item: pytest.Item) -> None:
    late = time.time() - float(os.environ.get("SLOW_TESTS_UNTIL", "inf"))
    if late > 0 and item.get_closest_marker("slow") is not None:
        pytest.skip(f"slow, and CI's time for such tests was over {late:.0f} s ago: this machine is slower than others")
