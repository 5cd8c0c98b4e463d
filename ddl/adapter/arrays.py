"""Arrays and objects as the core moves them: for frameworks with arrays, or with messages, of their own."""

from __future__ import annotations

from ddl._comm.arrays import as_array
from ddl._comm.gpu_arrays import GpuArray, GpuMemory, describe_arrays_of, describe_host_arrays_of, element_number
from ddl._comm.object_codec import decode, encode
from ddl._comm.size_exchange import decode_type, row, shape_of

__all__ = ["GpuArray", "GpuMemory", "as_array", "decode", "decode_type", "describe_arrays_of", "encode", "row"]
__all__ += ["describe_host_arrays_of", "element_number", "shape_of"]
