"""Caffe says in its log only what is wrong; ranks inherit that."""

from __future__ import annotations

import os

os.environ.setdefault("GLOG_minloglevel", "2")  # before Caffe is loaded: glog reads it then
