"""``python -m ddl.tools`` is the ``ddl`` command."""

import sys

from ddl.tools.cli import main

if __name__ == "__main__":
    sys.exit(main())
