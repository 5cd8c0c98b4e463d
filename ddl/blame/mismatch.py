"""Ranks that have called different operations under one number of a communicator."""

from __future__ import annotations

from collections import Counter
from typing import Dict, Iterator, List, Optional, Tuple

from ddl.blame.finding import Finding
from ddl.blame.view import JobView, same_host
from ddl.records.layout import CommunicatorRecord, RecordedOperation
from ddl.text.rank_names import name_ranks

__all__ = ["mismatches"]


def mismatches(view: JobView) -> Iterator[Finding]:
    """Return a finding for each communicator in which calls do not match, about the first number where they do not."""
    told = set()
    for number in view.dumps:
        for record in view.communicators(number):
            if record.number not in told:
                told.add(record.number)
                differing = _first_difference(view, record)
                if differing is not None:
                    yield _finding(view, record, *differing)


def _first_difference(view: JobView, record: CommunicatorRecord) -> Optional[Tuple[int, Dict[int, RecordedOperation]]]:
    """Return the lowest number under which ranks have called different operations, and what each has called."""
    calls: Dict[int, RecordedOperation] = {}  # the first rank's, by number
    lowest: Optional[int] = None
    members = view.sides(record).values()
    for theirs in members:
        for call in theirs.collectives:
            if _signature(calls.setdefault(call.number, call)) != _signature(call):
                lowest = call.number if lowest is None else min(lowest, call.number)
                break
    if lowest is None:
        return None
    said = {
        theirs.ranks[theirs.rank]: call for theirs in members for call in theirs.collectives if call.number == lowest
    }
    return lowest, said


def _signature(call: RecordedOperation) -> Tuple[object, ...]:
    """Return what all ranks must have alike: csrc/engine/descriptor.h."""
    return call.collective, call.dtype, call.op, call.sizes_for, call.root, call.count


def _finding(view: JobView, record: CommunicatorRecord, number: int, said: Dict[int, RecordedOperation]) -> Finding:
    groups: Dict[Tuple[object, ...], List[int]] = {}
    for process, call in sorted(said.items()):
        groups.setdefault(_signature(call), []).append(process)
    where = "" if record.title == "all ranks" else f" of {record.title}"
    texts = {signature: f"{said[processes[0]].text}" for signature, processes in groups.items()}
    if len(set(texts.values())) < len(texts):  # sums and averages of sizes, say, that have one text
        texts = {signature: f"{text} {signature}" for signature, text in texts.items()}
    usual, count = Counter({signature: len(processes) for signature, processes in groups.items()}).most_common(1)[0]
    odd = [process for signature, processes in groups.items() if signature != usual for process in processes]
    if 2 * count > len(said):
        blamed = odd
        first = next(signature for signature in groups if signature != usual)
        name = view.name(odd[0]) if len(odd) == 1 else name_ranks(sorted(map(view.rank, odd)))
        sentence = f"{name} called {texts[first]} as operation #{number}{where}; most ranks called {texts[usual]}"
    else:
        blamed = list(said)
        unknown = sorted(view.rank(process) for process in record.ranks if process not in said)
        end = f"what {name_ranks(unknown)} called is not known" if unknown else "there is no majority"
        sentence = f"the ranks called different operations as #{number}{where}; {end}"
    labels = {process: f' "{call.label}"' if call.label else "" for process, call in said.items()}
    evidence = [
        f"{name_ranks(sorted(map(view.rank, processes)))} called {texts[signature]}{labels[processes[0]]} as #{number}"
        for signature, processes in groups.items()
    ]
    advice = (
        "all ranks must make the same calls in the same order: look for a branch, or a shape, that depends on the rank"
    )
    ranks = tuple(sorted(map(view.rank, blamed)))
    return Finding("called something else", ranks, same_host(view, blamed), sentence, tuple(evidence), advice)
