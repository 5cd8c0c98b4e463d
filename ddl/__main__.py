"""``python -m ddl`` is the ``ddl`` command, for shells that do not find the script."""

from __future__ import annotations

import sys

from ddl.tools.cli import main

if __name__ == "__main__":
    sys.exit(main())
