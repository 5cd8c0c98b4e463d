"""``python -m ddl.launch`` is ``ddlrun``, for where the script is not on the PATH."""

from __future__ import annotations

import sys

from ddl.launch.cli import main

sys.exit(main())
