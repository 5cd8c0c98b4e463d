"""The flags of ``ddl-caffe``. This needs no Caffe: completion and man pages are made from it where there is none."""

from __future__ import annotations

import argparse

__all__ = ["FLAGS", "parser"]

_USAGE = "ddlrun -np N ddl-caffe train --solver=FILE [--snapshot=FILE | --weights=FILE,...] [flag ...]"
#: Name of a flag -> what its value is, and what it means.
FLAGS = {
    "solver": ("FILE", "the solver's prototxt"),
    "snapshot": ("FILE", "resume from this .solverstate, which all ranks read"),
    "weights": ("FILE,...", "begin with the weights of these .caffemodel files, as rank 0 reads them"),
    "level": ("N", "the level of the net's state"),
    "stage": ("NAME,...", "its stages, separated by commas"),
    "ddl": (
        "OPTIONS",
        "options as IBM's Caffe has them: '-mode b:4x2' means what ddlrun's --mode does, and must not contradict it",
    ),
}


def parser() -> argparse.ArgumentParser:
    """Return the parser of ``ddl-caffe``."""
    text = "Train with Caffe on all ranks of a job. Flags are those of caffe, with one dash or two."
    flags = argparse.ArgumentParser(prog="ddl-caffe", usage=_USAGE, description=text, allow_abbrev=False)
    flags.add_argument("command", choices=["train"], help="for test and time there is caffe itself")
    for name, (metavar, text) in FLAGS.items():
        flags.add_argument(f"--{name}", f"-{name}", metavar=metavar, default="", help=text)
    flags.add_argument("--bvlc", "-bvlc", action="store_true", help="average when the backward pass has ended")
    return flags
