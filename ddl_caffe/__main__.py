"""``python -m ddl_caffe`` is ``ddl-caffe``, for shells that do not find the script."""

from __future__ import annotations

import sys

from ddl_caffe.cli import main

sys.exit(main())
