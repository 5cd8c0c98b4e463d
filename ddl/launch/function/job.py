"""ddlrun on behalf of ``ddl.run``: ``python -m ddl.launch.function.job FOLDER CALLER OPTION... -- COMMAND``.

It tells process CALLER how the job ended, and not the user. It ends when CALLER ends, and removes FOLDER.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from ddl.errors import Error
from ddl.launch.agent.processes import die_with_parent
from ddl.launch.cli import parse
from ddl.launch.job.local_job import FixedLocalCourse, LocalJob

__all__ = ["main"]


def _conclude(job: LocalJob, folder: Path) -> int:
    """Write how the job has ended, for the caller."""
    stopped, failed = job.stopped_by, job.failed
    ended = {
        "stopped": None if stopped is None else stopped.name,
        "rank": None if failed is None else failed.rank,
        "text": str(failed),
        "tail": [] if failed is None else job.last_lines(failed.rank),
    }
    (folder / "ended").write_text(json.dumps(ended))
    return 0


def main() -> int:
    """Run the job; return 0 if its caller can read how it ended."""
    name, caller, *options = sys.argv[1:]
    folder = Path(name)
    die_with_parent(int(caller))()
    try:
        config = parse(options, dict(os.environ))
        for note in config.notes:
            print(f"ddl.run: {note}", file=sys.stderr)
        return LocalJob(config, FixedLocalCourse, lambda job: _conclude(job, folder), folder).run()
    except (Error, OSError) as error:
        print(f"ddl.run: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
