"""What every file of ``ddlrun --timeline`` has to keep to, also one that was cut off."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any, Dict, List

ROOT = str(Path(__file__).resolve().parents[1])
Event = Dict[str, Any]


def events_of(path: Path) -> List[Event]:
    """Return the events, but for a last line that was being written; check what a viewer relies on."""
    lines = path.read_text().split("\n")
    assert lines.pop(0) == "["
    whole = lines[-2:] == ["]", ""]
    lines = lines[:-2] if whole else lines[:-1]
    events: List[Event] = [json.loads(line.rstrip(",")) for line in lines]
    if whole:
        assert json.loads(path.read_text()) == events
    slices_nest(events)
    flows_bind(events)
    return events


def slices_nest(events: List[Event]) -> None:
    rows = defaultdict(list)
    for event in slices(events):
        begin = round(1000 * event["ts"])
        rows[event["pid"], event["tid"]].append((begin, -round(1000 * event["dur"]), event["name"]))
    for row, spans in rows.items():
        around: List[int] = []  # the ends of the slices that the present one may lie in
        for begin, minus, name in sorted(spans):
            end = begin - minus
            while around and around[-1] <= begin:
                around.pop()
            assert not around or end <= around[-1], (row, name, begin, end, around)
            around.append(end)


def flows_bind(events: List[Event]) -> None:
    """Each arrow begins and ends in a slice, and does not go back in time."""
    rows = defaultdict(list)
    for event in slices(events):
        rows[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"] + 0.001))
    begun: Dict[int, Event] = {}
    ended = 0
    for event in events:
        if event["ph"] in "sf":
            around = rows[event["pid"], event["tid"]]
            assert any(begin <= event["ts"] <= end for begin, end in around), event
        if event["ph"] == "s":
            begun[event["id"]] = event
        elif event["ph"] == "f":
            ended += 1
            begin = begun[event["id"]]
            assert begin["ts"] <= event["ts"] and begin["pid"] != event["pid"], (begin, event)
    assert ended == len(begun)


def slices(events: List[Event], category: str = "") -> List[Event]:
    return [event for event in events if event["ph"] == "X" and category in ("", event["cat"])]


def names(events: List[Event]) -> List[str]:
    """Return how the tracks of ranks are called."""
    return [event["args"]["name"] for event in events if event["name"] == "process_name"]


def totals(events: List[Event]) -> Dict[str, Any]:
    last: Dict[str, Any] = [event for event in events if event["name"] == "ddl_totals"][-1]["args"]
    return last


def summary(path: Path, *options: str) -> str:
    """Return what ``ddl timeline`` says."""
    tool = [sys.executable, "-m", "ddl.tools", "timeline", str(path), *options]
    environ = {**os.environ, "PYTHONPATH": ROOT}
    return subprocess.run(tool, capture_output=True, text=True, check=True, env=environ, timeout=240).stdout
