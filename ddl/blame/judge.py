"""``blame``: all findings about a job, from the dumps of its ranks and what its launcher knows."""

from __future__ import annotations

import dataclasses
import re
from typing import Iterator, List, Optional, Sequence, Set

from ddl.blame.causes import cause_of, is_own_end, wait_line
from ddl.blame.finding import KINDS, Finding
from ddl.blame.links import link_findings
from ddl.blame.mismatch import mismatches
from ddl.blame.roots import WaitGraph
from ddl.blame.slow import slow_ranks
from ddl.blame.view import JobView, same_host
from ddl.blame.waits import LOST, OLD_DUMP, WaitEdge, waits
from ddl.records.dump import JobEnd, RankDump
from ddl.text.rank_names import name_ranks

__all__ = ["PATIENCE", "blame"]

PATIENCE = 5.0  #: seconds that a rank of a job that runs waits at least, before another one is blamed for it
_SHOWN = 4
_SAME_ORDER = "let all ranks make these calls in the same order, or use the _async forms and wait for all at the end"
_NOT_FINITE = re.compile(r"InvalidState: .*\bis \(?[-+]?(?:nan|inf)\S* on rank (\d+)")
_DEADLOCK = re.compile(
    r"CollectiveMismatch: .*?(the ranks wait for one another, and none of them can go on): (.*); all "
)
_APART = re.compile(r"lost rank (\d+) \([^)]*\): it and (ranks? .+?) have not heard each other for (\d+ s)")
_OVERFLOW = re.compile(r"InvalidState: .*\badd up to more than \S+ holds")


def blame(dumps: Sequence[RankDump], end: Optional[JobEnd] = None, *, patience: float = PATIENCE) -> List[Finding]:
    """Return what is wrong with a job, the most fundamental first; [] if nothing is.

    ``dumps``: of ranks of one job, each of another rank. They may be of different moments. Shorter waits than
    ``patience``, in seconds, are usual in a job that runs.
    """
    view = JobView(dumps, end)
    edges = waits(view, patience)
    graph = WaitGraph(edges)
    findings = [*_launcher_lost(view), *mismatches(view), *_not_finite(view), *_proven_deadlock(view), *_apart(view)]
    ended = not any(finding.kind in ("not finite", "hosts apart") for finding in findings)
    given_up = {rank for finding in findings if finding.kind == "hosts apart" for rank in finding.ranks}
    findings += [each for each in _of_ranks(view, graph, ended=ended) if not given_up.intersection(each.ranks)]
    findings += [_ring(view, graph, ring) for ring in graph.cycles()]
    if not findings:
        findings += [*_was_apart(view)] or _rest(view, edges) or slow_ranks(view)
    if all(finding.kind == "unknown" for finding in findings):  # perhaps the network explains it
        findings += link_findings(view)
    findings.sort(key=lambda finding: (KINDS.index(finding.kind), _first(view) not in finding.ranks, finding.ranks))
    return _with_verdict(view, findings)


def _of_ranks(view: JobView, graph: WaitGraph, *, ended: bool) -> Iterator[Finding]:
    """Return findings about single ranks and lost hosts. ``ended``: also about those that have failed by themselves."""
    accused = set(graph.sinks())
    accused |= {number for number, dump in view.dumps.items() if dump.process.state.startswith("is stopped")}
    accused |= {number for number, dump in view.dumps.items() if dump.process.out_of_memory}
    if ended:
        accused |= {number for number in view.members if is_own_end(view, number)}
    accused -= {number for number in accused if number in view.dumps and _knew_before(view, graph, number)}
    done: Set[int] = set()
    for number in sorted(accused):
        if number in done:
            continue
        finding = cause_of(view, graph, number)
        gone = view.lost_host(number) if finding.kind == "unknown" and number not in view.dumps else ()
        done |= {number, *gone}
        yield _lost_host(view, graph, gone) if gone else finding


def _knew_before(view: JobView, graph: WaitGraph, number: int) -> bool:
    """Return whether a process waits for another one, or lost it, and so is no cause by itself."""
    return bool(graph.waits_of(number)) and not view.dumps[number].process.state.startswith("is stopped")


def _lost_host(view: JobView, graph: WaitGraph, gone: Sequence[int]) -> Finding:
    host = next(filter(None, map(view.host, gone)))
    lines = [wait_line(view, edge) for number in gone for edge in graph.waits_for(number)]
    return Finding(
        "host lost",
        tuple(map(view.rank, gone)),
        host,
        f"host {host} is lost: none of its ranks has a dump ({name_ranks(sorted(map(view.rank, gone)))})",
        tuple(lines[:_SHOWN]),
        f"see whether host {host} and its network are up; if they are, run 'ddl dump --out' there, too",
    )


def _ring(view: JobView, graph: WaitGraph, ring: Sequence[WaitEdge]) -> Finding:
    """Return the finding about ranks that wait for one another."""
    numbers = [edge.waiter for edge in ring]
    ranks = tuple(map(view.rank, numbers))
    lines = tuple(wait_line(view, edge) for edge in ring[: 2 * _SHOWN])
    host = same_host(view, numbers)
    if all(edge.sure for edge in ring):
        chain = ", ".join(
            f"rank {view.rank(edge.waiter)} waits for rank {view.rank(edge.awaited)}" for edge in ring[:_SHOWN]
        )
        return Finding(
            "deadlock",
            ranks,
            host,
            f"{chain}{', …' if len(ring) > _SHOWN else ''}: none of them can go on",
            lines,
            _SAME_ORDER,
        )
    advice = "if this stays so, look at the network between the hosts: ddl doctor"
    if any(edge.why == LOST for edge in ring):
        sentence = f"{name_ranks(sorted(ranks))} have lost one another"
        return Finding("unknown", ranks, host, sentence, lines, advice)
    calls = {edge.call.numbered for edge in ring if edge.call is not None}
    return Finding(
        "unknown",
        ranks,
        host,
        f"all ranks have called {' and '.join(sorted(calls)[:2])}, and none can end it; "
        f"{name_ranks(sorted(ranks))} wait for one another's data",
        lines,
        advice,
    )


def _launcher_lost(view: JobView) -> Iterator[Finding]:
    if view.end is not None and view.end.launcher_lost:
        yield Finding(
            "launcher lost",
            tuple(sorted(map(view.rank, view.dumps))),
            same_host(view, list(view.dumps)),
            "these ranks were ended because the launcher was lost; they are not to blame",
            (view.end.launcher_lost,),
            "look at the host of ddlrun, and at who may have killed it; --min-np lets ranks go on without it",
        )


def _not_finite(view: JobView) -> Iterator[Finding]:
    """Return the finding about a NaN that ``check=`` has found, by the last lines of any rank."""
    for number in view.members:
        for line in view.last_lines(number):
            named, overflow = _NOT_FINITE.search(line), _OVERFLOW.search(line)
            if named is None and overflow is None:
                continue
            culprit = view.number(int(named[1])) if named is not None else None
            ranks = (view.rank(culprit),) if culprit is not None else tuple(map(view.rank, view.members))
            who = f"a gradient of {view.name(culprit)} is" if culprit is not None else "a sum of gradients is"
            yield Finding(
                "not finite",
                ranks,
                view.host(culprit) if culprit is not None else "",
                f"{who} not finite",
                (line.strip(),),
                "look at the loss and the data of that rank: docs/check.md"
                if culprit is not None
                else "scale the loss down: docs/check.md",
            )
            return


def _proven_deadlock(view: JobView) -> Iterator[Finding]:
    """Return the finding about ranks of which the job's store knew that they wait for one another."""
    told = [(number, _DEADLOCK.search(view.failure(number))) for number in view.dumps]
    texts = [(number, words) for number, words in told if words is not None]
    if texts:
        numbers, (_, words) = [number for number, _ in texts], texts[0]
        places = tuple(words[2].split("; ")[: 2 * _SHOWN])
        ranks = tuple(map(view.rank, numbers))
        yield Finding("deadlock", ranks, same_host(view, numbers), words[1], places, _SAME_ORDER)


def _apart(view: JobView) -> Iterator[Finding]:
    """Return the finding about ranks of which the job's store knew that they do not hear each other."""
    told = {number: view.failure(number) for number in view.dumps if _APART.search(view.failure(number))}
    if told:
        lines = [f"rank {view.rank(number)}: {text}" for number, text in told.items()]
        yield _hosts_apart(view, next(iter(told.values())), lines[:_SHOWN])


def _was_apart(view: JobView) -> Iterator[Finding]:
    """Return that finding where ranks come and go: only the store says so, of a rank that is in the job no more."""
    verdict = (view.end.verdict if view.end is not None else None) or {}
    text = f"lost rank {view.rank(int(verdict.get('culprit', -1)))} (): {verdict.get('reason', '')}"
    if _APART.search(text):
        yield _hosts_apart(view, text, [])


def _hosts_apart(view: JobView, text: str, lines: Sequence[str]) -> Finding:
    words = _APART.search(text)
    assert words is not None
    number = view.number(int(words[1]))
    return Finding(
        "hosts apart",
        (view.rank(number),),
        view.host(number),
        f"{view.name(number)} and {words[2]} have not heard each other for {words[3]}, though both reached the job's "
        "store",
        tuple(lines),
        "look at the network between these hosts, and at firewalls: ddl doctor",
    )


def _rest(view: JobView, edges: Sequence[WaitEdge]) -> List[Finding]:
    """Say what is known where no rank explains it."""
    old = [edge for edge in edges if edge.why == OLD_DUMP]
    failures = [(number, view.failure(number)) for number in view.dumps if view.failure(number)]
    advice = "dump all ranks again, at the same time"
    if failures:
        numbers = [number for number, _ in failures]
        sentence = f"{name_ranks(sorted(map(view.rank, numbers)))} failed; the dumps do not show why"
        lines = [f"rank {view.rank(number)}: {failure}" for number, failure in failures[:_SHOWN]]
        advice = "read the failure, and the last lines of the ranks on stderr"
    elif old:
        numbers = [edge.waiter for edge in old]
        sentence = f"ranks wait, but the dumps of {name_ranks(sorted({view.rank(e.awaited) for e in old}))} are too old"
        lines = [f"{wait_line(view, edge)}, of which the dump is older, by the hosts' clocks" for edge in old[:_SHOWN]]
    elif view.end is not None and (view.end.verdict or view.end.first is not None):
        culprit = _first(view)
        numbers = [view.number(culprit)] if culprit >= 0 else []
        name = view.name(numbers[0]) if numbers else "the job"
        sentence = f"{name} failed; the dumps do not show why"
        lines = [words for words in [view.end.exits.get(culprit, "")] if words]
        lines += list(view.last_lines(numbers[0]))[-_SHOWN:] if numbers else []
        advice = "read its last lines on stderr"
    else:
        return []
    ranks = tuple(sorted({view.rank(number) for number in numbers}))
    return [Finding("unknown", ranks, same_host(view, numbers), sentence, tuple(lines), advice)]


def _first(view: JobView) -> int:
    """Return the rank in which the failure began, as the launcher or the store says; -1 if they do not say it."""
    if view.end is None:
        return -1
    if view.end.first is not None:
        return view.end.first
    return view.rank(int((view.end.verdict or {}).get("culprit", -1)))


def _with_verdict(view: JobView, findings: List[Finding]) -> List[Finding]:
    """Add to the first finding what the job's store and launcher say, and whether that is the same."""
    if not findings or view.end is None:
        return findings
    first, lines = findings[0], []
    verdict = view.end.verdict
    if verdict is not None:
        culprit = view.rank(int(verdict.get("culprit", -1)))
        who = f"rank {culprit}: " if culprit >= 0 else ""
        same = culprit < 0 or culprit in first.ranks
        lines.append(
            f"the job's store says {'the same' if same else 'something else'}: "
            f"{verdict.get('kind', 'failed')}: {who}{verdict.get('reason', '')}"
        )
    began = view.end.first
    if began is not None and began not in first.ranks and first.kind != "not finite":  # of which all ranks are told
        lines.append(f"but the launcher says that the failure began with rank {began}")
    return [dataclasses.replace(first, evidence=(*first.evidence, *lines)), *findings[1:]]
