"""Checks the GPUs of a host: whether DDL can use arrays on them, their links, and what copies to them have at hand."""

from __future__ import annotations

from typing import Callable, Iterator, List, Tuple

from ddl.tools.doctor.checks.verdict import ERROR, OK, WARNING, Verdict, present
from ddl.tools.doctor.facts import Facts
from ddl.tools.doctor.gpu_facts import EXCLUSIVE, PROHIBITED, GpuFacts, HostGpus
from ddl.tools.doctor.phrases import counted

__all__ = ["CHECKS"]

_Said = Iterator[Tuple[str, str, str]]  #: level, text, remedy
_NOTHING_VISIBLE = ("", "-1", "NoDevFiles")  #: of CUDA_VISIBLE_DEVICES
_POOR = 1 / 3  # of what a link carries


def _each_host(facts: Facts, check: str, said: Callable[[HostGpus, int], _Said]) -> List[Verdict]:
    """Ask ``said`` of every host that could be asked. ``said`` gets its GPUs and its number of ranks."""
    return [
        Verdict(level, check, (host.name,), text, remedy)
        for host, local in present(facts)
        if local.gpus.known
        for level, text, remedy in said(local.gpus, len(host.ranks))
    ]


def gpus(facts: Facts) -> List[Verdict]:
    """The driver, the GPUs, and how many ranks there are for each."""

    def said(there: HostGpus, ranks: int) -> _Said:
        if there.missing and not there.library:
            yield OK, "no driver of GPUs: arrays on the CPU only", ""
        elif there.missing or there.problem:
            yield WARNING, there.problem or f"{there.library} cannot be loaded", _driver_remedy(there)
        else:
            bad = list(_unusable(there))
            yield from bad or [(OK, f"{_counted(there)}, driver for CUDA {there.cuda}{_shares(there, ranks)}", "")]
            yield from _layout(there, ranks if facts.ranks_given else 0)

    return _each_host(facts, "gpus", said)


def _driver_remedy(there: HostGpus) -> str:
    if there.missing:
        return "unset DDL_CUDA_LIBRARY, or let it name the driver's libcuda.so.1"
    if "stub" in there.problem:
        return "take the folder of the toolkit's stubs out of LD_LIBRARY_PATH"
    if there.visible is not None and there.visible.strip() in _NOTHING_VISIBLE:
        return f"CUDA_VISIBLE_DEVICES is '{there.visible}', which hides all GPUs: unset it, or name some: 0,1"
    return "does nvidia-smi show them? A container must be given them: docker run --gpus all, srun --gres=gpu:N"


def _counted(there: HostGpus) -> str:
    names = sorted({gpu.name for gpu in there.devices})
    return f"{counted(len(there.devices), 'GPU')} ({', '.join(names)})"


def _shares(there: HostGpus, ranks: int) -> str:
    count = len(there.devices)
    return ", one for each rank" if ranks == count else f" for {counted(ranks, 'rank')}"


def _unusable(there: HostGpus) -> _Said:
    for gpu in there.devices:
        if gpu.compute_mode == PROHIBITED:
            remedy = f"nvidia-smi -i {_name(gpu)} -c DEFAULT, as root"
            yield ERROR, f"GPU {gpu.number} is closed to all processes (compute mode 'prohibited')", remedy
        elif gpu.problem and gpu.compute_mode == EXCLUSIVE:
            remedy = f"end the other process, or nvidia-smi -i {_name(gpu)} -c DEFAULT, as root"
            yield ERROR, f"{gpu.problem}; it is open to one process at a time (compute mode 'exclusive')", remedy
        elif gpu.problem:
            remedy = "see nvidia-smi and the kernel's log (lines with Xid); restart its processes, reset it, or leave "
            yield ERROR, gpu.problem, f"{remedy}it out by CUDA_VISIBLE_DEVICES"


def _name(gpu: GpuFacts) -> str:
    """Return what nvidia-smi calls a GPU: it numbers them in another order than CUDA does."""
    return gpu.address or str(gpu.number)


def _layout(there: HostGpus, ranks: int) -> _Said:
    count = len(there.devices)
    if ranks <= count:
        return
    if any(gpu.compute_mode == EXCLUSIVE for gpu in there.devices):
        text = f"{ranks} ranks for {counted(count, 'GPU')} for one process at a time (compute mode 'exclusive')"
        yield ERROR, text, f"start {counted(count, 'rank')} on this host, or nvidia-smi -c DEFAULT, as root"
    else:
        text = f"{ranks} ranks for {counted(count, 'GPU')}: ranks on the same GPU share its link"
        yield WARNING, text, f"start {counted(count, 'rank')} on this host, unless its processes are meant to share"


def _each_gpu(facts: Facts, check: str, well: str, said: Callable[[GpuFacts], _Said]) -> List[Verdict]:
    """Ask ``said`` of every GPU that can be used; where it says nothing of those of a host, all is ``well``."""

    def of_host(there: HostGpus, ranks: int) -> _Said:
        told = dict.fromkeys(entry for gpu in there.usable for entry in said(gpu))
        if there.usable:
            yield from told or [(OK, well, "")]

    return _each_host(facts, check, of_host)


def links(facts: Facts) -> List[Verdict]:
    """The links between GPUs and the host, and what copies reach of them."""

    def said(gpu: GpuFacts) -> _Said:
        link = gpu.link
        if link.narrow:
            text = f"the link of GPU {gpu.number} has {link.lanes} of {link.most_lanes} lanes"
            yield WARNING, text, "reseat the card, or use a slot that has all lanes (and gives them to no other slot)"
        if link.slow:
            text = f"the lanes of GPU {gpu.number} run at {link.speed:g} of {link.top_speed:g} GT/s"
            yield WARNING, text, "set the slot to its highest generation in the BIOS; look for bad risers and cables"
        if not gpu.refusal and 0 < max(gpu.down, gpu.up) < _POOR * link.bytes_per_s:
            reached, carries = max(gpu.down, gpu.up) / 1e9, link.bytes_per_s / 1e9
            text = f"copies of GPU {gpu.number} reach {reached:.3g} GB/s of {carries:.3g} GB/s that its link carries"
            yield WARNING, text, "is the GPU in use? Otherwise run ranks on its NUMA node, and see the host's IOMMU"

    return _each_gpu(facts, "gpu links", "links are as wide and fast as the GPUs' own, where that is known", said)


def registering(facts: Facts) -> List[Verdict]:
    """Whether GPUs may read and write memory of the host directly."""

    def said(gpu: GpuFacts) -> _Said:
        if gpu.refusal:
            text = f"the driver refuses to register memory ({gpu.refusal}): copies take a slower way"
            remedy = "let processes pin shared memory: a container without gVisor, a larger memory limit of its cgroup"
            yield WARNING, text, remedy

    return _each_gpu(facts, "registering", "the driver registers memory of the host", said)


def words(facts: Facts) -> List[Verdict]:
    """Whether GPUs can say by themselves that data has arrived."""

    def said(gpu: GpuFacts) -> _Said:
        if gpu.words_problem and not gpu.refusal:
            text = f"streams cannot write words ({gpu.words_problem}): a thread asks instead, which takes longer"
            yield WARNING, text, "install a newer driver: 515 or later"

    return _each_gpu(facts, "words", "streams say by words that data has arrived", said)


CHECKS = (gpus, links, registering, words)
