"""Each of c10d's verbs for one tensor (or one per rank), as a call of ``ddl``'s core."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple

import numpy as np
import torch
import torch.distributed as dist

import ddl
from ddl import Communicator, InvalidArgument
from ddl.adapter.calls import Call, Collective, calls_of
from ddl_torch._memory import in_host
from ddl_torch._tensors import alias, plain
from ddl_torch.c10d.arguments import Finish, Part, bitwise, elements, in_place, moved, reduction, sparse_allreduce

__all__ = ["C10dVerbs"]

Tensors = Sequence[torch.Tensor]


class C10dVerbs:
    """The verbs on a communicator. ``blocking`` ones have ended when they return.

    The caller then does the work itself: no other thread is woken, which is what a small operation costs most.
    """

    def __init__(self, communicator: Communicator, *, blocking: bool) -> None:
        self._communicator = communicator
        self._calls = calls_of(communicator)
        self._rank, self._size = communicator.rank, communicator.size
        self._blocking = blocking
        #: Makes a call whose tensors say all of the sizes: collective, input, output, operator, root.
        self._alike: Callable[[Collective, Any, Any, ddl.ReduceOp, int], Optional[ddl.Work]]
        self._alike = self._calls.run_alike if blocking else self._start_alike

    def _issue(self, call: Call[None]) -> Optional[ddl.Work]:
        if not self._blocking:
            return self._calls.start(call)
        self._calls.run(call)
        return None

    def _start_alike(self, collective: Collective, x: Any, out: Any, op: ddl.ReduceOp, root: int) -> ddl.Work:
        return self._calls.start(Call(collective, x, out, None, op=op, root=root))

    def _parts(
        self, collective: Collective, input: Any, output: Any, part: int, op: ddl.ReduceOp = ddl.Sum
    ) -> Optional[ddl.Work]:
        """Make a call on as many parts as there are ranks, each of ``part`` elements."""
        if not self._blocking:
            return self._calls.start(Call(collective, input, output, None, op=op, part_lengths=[part]))
        self._calls.run_alike(collective, input, output, op, 0)
        return None

    # --- to all ranks ---

    def allreduce(self, tensor: torch.Tensor, op: Any) -> Part:
        """Combine ``tensor`` over all ranks, in place. It may be sparse."""
        usual = op == dist.ReduceOp.SUM  # a comparison takes 0.15 us
        known = in_host(tensor) if usual else None
        if known is not None:  # then nothing need be asked again
            return self._alike(Collective.ALLREDUCE, known, known, ddl.Sum, 0), None
        if tensor.layout == torch.sparse_coo:
            return sparse_allreduce(self._communicator, tensor, op)
        combine = None if usual else bitwise(op)
        if combine is not None:
            return self._bitwise(tensor, combine)
        own, finish = in_place(tensor, "all_reduce")
        ddl_op, factor = (ddl.Sum, None) if usual else reduction(op, tensor)
        if factor is not None:
            own.mul_(factor)
        return self._alike(Collective.ALLREDUCE, own, own, ddl_op, 0), finish

    def _bitwise(self, tensor: torch.Tensor, combine: Callable[..., torch.Tensor]) -> Tuple[Optional[ddl.Work], Finish]:
        """The core has no bitwise operators: every rank gets all tensors and combines them."""
        rows = tensor.new_empty((self._size, *tensor.shape))

        def finish() -> None:
            total = rows[0]
            for row in rows[1:]:
                total = combine(total, row)
            tensor.copy_(total)

        return self._gather_rows(rows, tensor, "all_reduce"), finish

    def broadcast(self, tensor: torch.Tensor, root: int) -> Part:
        """Overwrite ``tensor`` by that of ``root``."""
        self._calls.check_rank("broadcast", "src", root)
        known = in_host(tensor)
        if known is not None:
            return self._alike(Collective.BROADCAST, known if self._rank == root else None, known, ddl.Sum, root), None
        own, finish = in_place(tensor, "broadcast")
        target = moved(own, "broadcast")
        source = target if self._rank == root else None
        return self._alike(Collective.BROADCAST, source, target, ddl.Sum, root), finish

    def allgather(self, targets: Tensors, tensor: torch.Tensor) -> List[Part]:
        """Fill ``targets[r]`` with ``tensor`` of rank r. Ranks may have different sizes, of which all know."""
        self.check_number("all_gather", targets)
        own = targets[self._rank].detach()
        _check_elements("all_gather", [own], tensor)
        if any(target.numel() != tensor.numel() for target in targets):
            own.copy_(tensor.detach().reshape(own.shape))
            return [self.broadcast(target, rank) for rank, target in enumerate(targets)]
        rows = tensor.new_empty((self._size, tensor.numel()))
        return [(self._gather_rows(rows, tensor, "all_gather"), _deal(rows, targets))]

    def allgather_single(self, output: torch.Tensor, tensor: torch.Tensor) -> Part:
        """Fill ``output`` with the tensors of all ranks, one after the other."""
        if output.numel() != tensor.numel() * self._size:
            raise InvalidArgument(
                f"all_gather_single: an output of {output.numel()} elements cannot hold {tensor.numel()} elements of "
                f"each of {self._size} ranks"
            )
        source, target = in_host(tensor), in_host(output)
        if source is not None and target is not None:
            return self._parts(Collective.ALLGATHER, source, target, tensor.numel()), None
        own, finish = in_place(output, "all_gather_single")
        return self._gather_rows(own, tensor, "all_gather_single"), finish

    def _gather_rows(self, rows: torch.Tensor, tensor: torch.Tensor, verb: str) -> Optional[ddl.Work]:
        input = moved(tensor, verb)
        return self._parts(Collective.ALLGATHER, input, moved(rows, verb), input.numel())

    # --- to or from one rank ---

    def reduce(self, tensor: torch.Tensor, root: int, op: Any) -> Part:
        """Combine ``tensor`` over all ranks; ``root`` gets the result, in place."""
        self._calls.check_rank("reduce", "dst", root)
        if bitwise(op) is not None:
            return self.allreduce(tensor if self._rank == root else tensor.clone(), op)
        own, finish = in_place(tensor, "reduce")
        ddl_op, factor = reduction(op, tensor)
        input = own if factor is None else own * factor
        output = own if self._rank == root else None
        return self._alike(Collective.REDUCE, input, output, ddl_op, root), finish

    def gather(self, targets: Optional[Tensors], tensor: torch.Tensor, root: int) -> Part:
        """Fill ``targets[r]``, which only ``root`` has, with ``tensor`` of rank r."""
        self._calls.check_rank("gather", "dst", root)
        block = moved(tensor, "gather")
        if targets is None:
            return self._rooted(Collective.GATHER, block, block, None, root), None
        self.check_number("gather", targets)
        _check_elements("gather", targets, tensor)
        rows = tensor.new_empty((self._size, tensor.numel()))
        return self._rooted(Collective.GATHER, block, block, moved(rows, "gather"), root), _deal(rows, targets)

    def gather_single(self, target: Optional[torch.Tensor], tensor: torch.Tensor, root: int) -> Part:
        """Fill ``target``, which only ``root`` has, with ``tensor`` of each rank, one after the other."""
        self._calls.check_rank("gather_single", "dst", root)
        block = moved(tensor, "gather_single")
        if target is None:
            return self._rooted(Collective.GATHER, block, block, None, root), None
        if target.numel() != tensor.numel() * self._size:
            raise InvalidArgument(
                f"gather_single: an output of {target.numel()} elements cannot hold {tensor.numel()} elements of each "
                f"of {self._size} ranks"
            )
        own, finish = in_place(target, "gather_single")
        return self._rooted(Collective.GATHER, block, block, moved(own, "gather_single"), root), finish

    def scatter(self, target: torch.Tensor, sources: Optional[Tensors], root: int) -> Part:
        """Fill ``target`` on rank r with ``sources[r]``, which only ``root`` has."""
        self._calls.check_rank("scatter", "src", root)
        own, finish = in_place(target, "scatter")
        block, rows = moved(own, "scatter"), None
        if sources is not None:
            self.check_number("scatter", sources)
            _check_elements("scatter", sources, target)
            rows = moved(_flat(sources, "scatter"), "scatter")
        return self._rooted(Collective.SCATTER, block, rows, block, root), finish

    def _rooted(
        self, collective: Collective, block: torch.Tensor, input: Any, output: Any, root: int
    ) -> Optional[ddl.Work]:
        """Make a call on blocks like ``block``, of which only the root has all."""
        nbytes = block.numel() * block.element_size() * self._size
        return self._issue(Call(collective, input, output, None, root=root, part_lengths=[block.numel()], bytes=nbytes))

    # --- to each rank its part ---

    def reducescatter(self, target: torch.Tensor, sources: Tensors, op: Any) -> List[Part]:
        """Combine ``sources[r]`` over all ranks into ``target`` of rank r. Parts may have different sizes."""
        self.check_number("reduce_scatter", sources)
        _check_elements("reduce_scatter", [sources[self._rank]], target)
        if all(source.numel() == target.numel() for source in sources):
            return [self.reducescatter_single(target, _flat(sources, "reduce_scatter"), op)]
        target.detach().copy_(sources[self._rank].detach().reshape(target.shape))
        blocks = [target if rank == self._rank else source.clone() for rank, source in enumerate(sources)]
        return [self.reduce(tensor, rank, op) for rank, tensor in enumerate(blocks)]

    def reducescatter_single(self, target: torch.Tensor, tensor: torch.Tensor, op: Any) -> Part:
        """Combine ``tensor`` over all ranks; rank r gets the r-th part in ``target``."""
        if tensor.numel() != target.numel() * self._size:
            raise InvalidArgument(
                f"reduce_scatter: an input of {tensor.numel()} elements is not {target.numel()} elements for each of "
                f"{self._size} ranks"
            )
        usual = op == dist.ReduceOp.SUM
        source, part = (in_host(tensor), in_host(target)) if usual else (None, None)
        if source is not None and part is not None:
            return self._parts(Collective.REDUCESCATTER, source, part, target.numel()), None
        combine = None if usual else bitwise(op)
        if combine is not None:
            whole = tensor.clone()
            work, combine_all = self._bitwise(whole, combine)

            def keep_part() -> None:
                combine_all()
                target.copy_(whole.view(self._size, -1)[self._rank].view(target.shape))

            return work, keep_part
        own, finish = in_place(target, "reduce_scatter")
        ddl_op, factor = reduction(op, tensor)
        input = alias(tensor.contiguous() if factor is None else tensor * factor, "reduce_scatter")
        return self._parts(Collective.REDUCESCATTER, input, own, own.numel(), ddl_op), finish

    def alltoall_single(
        self, output: torch.Tensor, tensor: torch.Tensor, output_splits: Sequence[int], input_splits: Sequence[int]
    ) -> Part:
        """Send the r-th part of ``tensor`` to rank r; what comes fills ``output``. Parts are in rows; none: equal.

        All ranks give splits, or none does: without them, no sizes are exchanged. Splits that happen to be equal here
        are no exception, as those of other ranks may differ.
        """
        if tensor.dim() == 0 or output.dim() == 0:
            raise InvalidArgument("all_to_all: a tensor without dimensions has no rows to send")
        own, finish = in_place(output, "all_to_all")
        if input_splits or output_splits:
            return self._exchange(
                own, elements(output, output_splits, self._size), tensor, elements(tensor, input_splits, self._size)
            ), finish
        if tensor.shape[0] % self._size or tensor.numel() != output.numel():
            raise InvalidArgument(
                f"all_to_all: {tensor.shape[0]} rows, to become {output.shape[0]}, are not as many for each of "
                f"{self._size} ranks; give splits"
            )
        input, part = moved(tensor, "all_to_all"), own.numel() // self._size
        return self._parts(Collective.ALLTOALL, input, moved(own, "all_to_all"), part), finish

    def alltoall(self, targets: Tensors, sources: Tensors) -> Part:
        """Send ``sources[r]`` to rank r, receive ``targets[r]`` from it. They may have different sizes."""
        self.check_number("all_to_all", targets)
        self.check_number("all_to_all", sources)
        flat = moved(_flat(sources, "all_to_all"), "all_to_all").reshape(-1)
        sizes = [moved(target, "all_to_all").numel() for target in targets]
        received = flat.new_empty(sum(sizes))

        def finish() -> None:
            for target, part in zip(targets, torch.split(received, sizes)):
                target.copy_(part.view(target.dtype).view(target.shape))

        lengths = [source.numel() for source in sources]
        return self._exchange(received, sizes, flat, lengths), finish

    def _exchange(
        self, output: torch.Tensor, receives: List[int], tensor: torch.Tensor, sends: List[int]
    ) -> Optional[ddl.Work]:
        """Make an all-to-all of parts of so many elements, after an exchange of the sizes, which blocks."""
        rows = self._calls.exchange(Collective.ALLTOALL, np.array([sends, receives], np.int64).ravel())
        sent, wanted = rows[:, : self._size], rows[:, self._size :]
        wrong = np.argwhere(sent != wanted.T)  # on all ranks alike
        if len(wrong):
            source, target = map(int, wrong[0])
            raise InvalidArgument(
                f"all_to_all: rank {source} sends {sent[source, target]} elements to rank {target}, which expects "
                f"{wanted[target, source]}"
            )
        input = moved(tensor, "all_to_all")
        call = Call(
            *(Collective.ALLTOALL, input, moved(output, "all_to_all"), None),
            part_lengths=[int(count) for count in sent.ravel()],
            bytes=int(sent.sum(axis=1).max()) * input.element_size(),
            count_differs=True,
        )
        return self._issue(call)

    # --- no data, and from one to another ---

    def barrier(self) -> Part:
        """Done when every rank has called it."""
        return self._alike(Collective.BARRIER, None, None, ddl.Sum, 0), None

    def send(self, tensor: torch.Tensor, dst: int) -> Part:
        """Send to rank ``dst``."""
        self._calls.check_peer("send", dst)
        return self._issue(Call(Collective.SEND, moved(tensor, "send"), None, None, root=dst)), None

    def recv(self, tensor: torch.Tensor, src: Optional[int]) -> Part:
        """Receive from rank ``src``, or from any (None), what it sends next, of the same type and size."""
        if src is not None:
            self._calls.check_peer("recv", src)
        own, finish = in_place(tensor, "recv")
        root = self._rank if src is None else src  # by which the core knows a receive from any rank
        return self._issue(Call(Collective.RECV, None, moved(own, "recv"), None, root=root)), finish

    def check_number(self, verb: str, tensors: Tensors) -> None:
        if len(tensors) != self._size:
            raise InvalidArgument(f"{verb}: {len(tensors)} tensors were given for {self._size} ranks")


def _check_elements(verb: str, tensors: Tensors, like: torch.Tensor) -> None:
    """Refuse what is not as large as ``like``: the core takes a buffer's length from its caller."""
    for tensor in tensors:
        if tensor.numel() != like.numel():
            raise InvalidArgument(
                f"{verb}: a tensor of {tensor.numel()} elements was given where {like.numel()} elements are needed"
            )


def _flat(tensors: Tensors, verb: str) -> torch.Tensor:
    return torch.cat([plain(tensor, verb).reshape(-1) for tensor in tensors])


def _deal(rows: torch.Tensor, targets: Tensors) -> Finish:
    def finish() -> None:
        for target, row in zip(targets, rows):
            target.copy_(row.view(target.shape))

    return finish
