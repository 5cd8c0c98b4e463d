"""``python -m benchmarks scrape``: a row for a small job."""

from __future__ import annotations

import re

from benchmarks.scrape import JobSize, measure


def test_a_row() -> None:
    # 6 of the job, 9 of each rank, and 4 links.
    assert re.fullmatch(r"\| 4 \| 2 \| 3 \| [\d.]+ ms \| [\d.]+ ms \| 43 \| \d+ KiB \|", measure(JobSize(4, 2, 3)))
