"""One rank of ``ddl.run``: ``python -m ddl.launch.function.rank FOLDER``. Calls the function and writes its result."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from pathlib import Path

from ddl.launch.agent.tail import for_report
from ddl.launch.function.run import pickled

__all__ = ["main"]


def main() -> int:
    """Return 0 if there is a result, 1 if there is a traceback instead."""
    folder, rank = Path(sys.argv[1]), os.environ["DDL_RANK"]
    try:
        path, call = pickle.loads((folder / "call").read_bytes())
        sys.path[:] = [*path, *(own for own in sys.path if own not in path)]
        function, args, kwargs = pickle.loads(call)
        del sys.argv[1:]
        result = pickled(function(*args, **kwargs), "the result")
    except BaseException:  # also what a script would end by
        lines = traceback.format_exc().splitlines()
        text = "\n".join(for_report(lines, len(lines)))
        (folder / f"error.{rank}").write_text(text, encoding="utf-8", errors="backslashreplace")
        return 1
    (folder / f"result.{rank}").write_bytes(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
