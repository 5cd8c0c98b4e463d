"""DDL for Theano: ``gradients = ddl_theano.allreduce(T.grad(loss, parameters))`` are averages over all ranks."""

from ddl import Average, Error, Max, Min, Product, Sum, init, local_rank, local_size, rank, shutdown, size
from ddl.adapter.metrics import MetricAverage, average_metrics
from ddl_theano import _compile_cache, _order, elastic  # noqa: F401 (the first two change Theano)
from ddl_theano.gradients import allreduce
from ddl_theano.host import allreduce_arrays, broadcast_parameters

__all__ = ["init", "shutdown", "rank", "size", "local_rank", "local_size", "Error", "MetricAverage", "average_metrics"]
__all__ += ["Average", "Max", "Min", "Product", "Sum", "allreduce", "allreduce_arrays", "broadcast_parameters"]
__all__ += ["elastic"]
