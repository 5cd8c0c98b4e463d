"""``ddl-caffe train``: what ``caffe train`` does, with the same flags, on all ranks of the job that ddlrun started."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
from typing import Any, Dict, Optional, Sequence

import caffe
from caffe.proto import caffe_pb2
from google.protobuf import text_format

import ddl
from ddl.adapter.joining import layout_variables, started_ranks
from ddl_caffe.averaging import attach
from ddl_caffe.data import init
from ddl_caffe.options import parser
from ddl_caffe.state import parameters_of, restore, snapshot, solver_of, test

__all__ = ["main"]

_NEVER = 2**31 - 1  #: iterations: tests that Caffe makes by itself are rank 0's alone


def _variables(options: str) -> Dict[str, str]:
    """Return what ``-mode`` means for DDL; ConfigError for other options, or if ddlrun said something else."""
    arguments = shlex.split(options)
    if arguments and (len(arguments) != 2 or arguments[0].lstrip("-") != "mode"):
        raise ddl.ConfigError(f"-ddl {options!r}: write -mode LETTER:SIZExSIZE; nothing here answers to the rest")
    variables = layout_variables(started_ranks(), arguments[1] if arguments else "")
    for name, value in variables.items():
        if os.environ.get(name, value) != value:
            raise ddl.ConfigError(f"-ddl {options!r} means {name}={value}, but it is {os.environ[name]} already")
    return variables


def _parameters(given: argparse.Namespace) -> Any:
    """Return the solver's parameters, as Caffe would read them. ConfigError."""
    if given.snapshot and given.weights:
        raise ddl.ConfigError("--snapshot resumes, --weights begins: give one of them")
    try:
        for path in filter(None, [given.snapshot, *given.weights.split(",")]):
            open(path, "rb").close()
        param = parameters_of(given.solver)
        param.train_state.level = int(given.level or param.train_state.level)
    except (OSError, ValueError, text_format.ParseError) as error:
        raise ddl.ConfigError(f"--solver={given.solver}: {error}") from error
    if param.HasField("solver_mode") and param.solver_mode == param.GPU:
        raise ddl.ConfigError(f"--solver={given.solver}: solver_mode is GPU; ddl_caffe needs Caffe on the CPU")
    param.train_state.stage.extend(filter(None, given.stage.split(",")))
    return param


def _make(param: Any) -> Any:
    own = caffe_pb2.SolverParameter.FromString(param.SerializeToString())
    own.test_interval, own.test_initialization = _NEVER, False
    return solver_of(own)


def _test_all(solver: Any, param: Any) -> None:
    for number, iterations in enumerate(param.test_iter):
        results = test(solver, iterations, net=number)
        caffe.log(f"Iteration {solver.iter}, Testing net (#{number})")
        weights = solver.test_nets[number].blob_loss_weights
        scores = [(name, value) for name, values in results.items() for value in values.ravel()]
        for line, (name, value) in enumerate(scores):
            loss = f" (* {weights[name]:g} = {weights[name] * value:g} loss)" if weights[name] else ""
            caffe.log(f"    Test net output #{line}: {name} = {value:g}{loss}")


def _train(solver: Any, param: Any) -> None:
    interval = param.test_interval or _NEVER

    def test_where_due() -> None:  # at the start of a step, where Caffe does it
        if solver.iter % interval == 0 and (solver.iter or param.test_initialization):
            _test_all(solver, param)

    solver.add_callback(test_where_due, lambda: None)
    solver.step(param.max_iter - solver.iter)
    if param.snapshot_after_train and not (param.snapshot and solver.iter % param.snapshot == 0):
        snapshot(solver)
    if solver.iter % interval == 0:
        _test_all(solver, param)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run ``ddl-caffe``; return its exit status: 2 for bad usage. What goes wrong later is raised."""
    given = parser().parse_args(argv)
    try:
        param = _parameters(given)
        os.environ.update(_variables(given.ddl))
        init()
    except ddl.ConfigError as error:
        print(f"ddl-caffe: {error}", file=sys.stderr)
        return 2
    caffe.init_log(int(os.environ.get("GLOG_minloglevel", "0")) if ddl.rank() == 0 else 2, True)  # others: errors only
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # ddlrun ends ranks by it; glog would print a stack
    solver = _make(param)
    if given.snapshot:
        restore(solver, given.snapshot)
    elif ddl.rank() == 0:
        for path in filter(None, given.weights.split(",")):
            solver.net.copy_from(path)
    attach(solver, overlap=not given.bvlc)
    _train(solver, param)
    caffe.log("Optimization Done.")
    return 0
