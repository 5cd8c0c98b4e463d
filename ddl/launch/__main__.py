"""``python -m ddl.launch`` is ``ddlrun``, for shells that do not find the script."""

from __future__ import annotations

import sys

from ddl.launch.cli import main

sys.exit(main())
