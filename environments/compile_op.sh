#!/bin/sh
# Compiles ddl_tensorflow's op for the TensorFlow of a Python, so that the first test or program need not: some seconds.
# compile_op.sh PYTHON. Does nothing where there is no TensorFlow for that Python.
set -eu
"$1" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("tensorflow") is None)' || exit 0
TF_CPP_MIN_LOG_LEVEL=3 "$1" -c 'from ddl_tensorflow._build import op_library; op_library()'
