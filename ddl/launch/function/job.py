"""ddlrun on behalf of ``ddl.run``: ``python -m ddl.launch.function.job FOLDER CALLER OPTION... -- COMMAND``.

It tells process CALLER how the job ended, and not the user. It ends when CALLER ends, and removes FOLDER.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from ddl.errors import Error
from ddl.launch.agent.processes import die_with_parent
from ddl.launch.ask.config import RunConfig
from ddl.launch.cli import parse
from ddl.launch.job.local_job import LocalJob

__all__ = ["main"]


class _FunctionJob(LocalJob):
    def __init__(self, config: RunConfig, folder: Path) -> None:
        super().__init__(config)
        self._folder = self.scratch = folder

    def _conclude(self) -> int:
        failed = self.failed
        ended = {
            "stopped": signal.Signals(self._stop_signal).name if self._stop_signal else None,
            "rank": None if failed is None else failed.rank,
            "text": str(failed),
            "tail": [] if failed is None else self._workers[failed.rank].streams[1].tail,
        }
        (self._folder / "ended").write_text(json.dumps(ended))
        return 0


def main() -> int:
    """Run the job; return 0 if its caller can read how it ended."""
    folder, caller, *options = sys.argv[1:]
    die_with_parent(int(caller))()
    try:
        config = parse(options, dict(os.environ))
        for note in config.notes:
            print(f"ddl.run: {note}", file=sys.stderr)
        return _FunctionJob(config, Path(folder)).run()
    except (Error, OSError) as error:
        print(f"ddl.run: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
