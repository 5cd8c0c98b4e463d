"""``python -m ddl_caffe`` is ``ddl-caffe``, for where the script is not on the PATH."""

from __future__ import annotations

import sys

from ddl_caffe.cli import main

sys.exit(main())
