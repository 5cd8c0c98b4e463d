"""The file of a run on a GPU machine: one JSON that grows step by step, so that a call that ends early loses nothing.

It lies in ``benchmarks/results``, and a copy in ``build/gpu``, which git ignores: wherever the newest is, the next call
goes on with it. A step that was running when its call ended stands in it as "running", and is run again, but not a
third time: it may be what ended the call.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from benchmarks import ROOT

__all__ = ["Record", "sources_digest"]

FORMAT = 1
MOST_TRIES = 2  #: of a step whose call was ended meanwhile
SOURCES = ("csrc", "ddl", "ddl_torch", "benchmarks/gpu", "benchmarks/training", "tests/device", "tests/gpu")


def sources_digest() -> str:
    """Return a name for the state of the sources: a step that failed is run again when they have changed."""
    total = hashlib.sha256()
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".cc", ".h") and path.is_file():
                total.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return total.hexdigest()[:12]


def _write(path: Path, text: str) -> None:
    """Replace the file as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(path)


def _load(path: Path) -> Optional[Dict[str, Any]]:
    with contextlib.suppress(OSError, ValueError):
        content = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(content, dict) and content.get("format") == FORMAT:
            return content
    return None


@dataclass
class Record:
    """What is known of a machine. ``folders``: where the file is written; the first one's is the file."""

    name: str
    folders: Sequence[Path]
    content: Dict[str, Any] = field(default_factory=dict)

    @classmethod
    def open(cls, name: str, folders: Sequence[Path], machine: Dict[str, Any], anew: bool = False) -> Record:
        """Return the newest record of that name that is in one of the folders, or a new one.

        ``machine``: facts of this call; those of an earlier one are kept if they say the same.
        """
        name = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "gpu"
        dated = re.compile(rf"gpu-{re.escape(name)}-\d{{4}}-\d\d-\d\d\.json")
        there = [
            path for folder in folders if folder.is_dir() for path in folder.iterdir() if dated.fullmatch(path.name)
        ]
        earlier = [content for content in map(_load, there) if content is not None]
        if earlier and not anew:
            record = cls(name, folders, max(earlier, key=lambda content: float(content["updated"])))
        else:
            date = datetime.date.today().isoformat()
            record = cls(name, folders, {"format": FORMAT, "name": name, "date": date, "machines": [], "steps": {}})
        if machine not in record.content["machines"]:
            record.content["machines"].append(machine)
        for step in record.steps.values():
            if step["status"] == "running":
                step["status"] = "cut off"
        record.save()
        return record

    @property
    def steps(self) -> Dict[str, Dict[str, Any]]:
        """What is known of each step, by its name."""
        steps: Dict[str, Dict[str, Any]] = self.content["steps"]
        return steps

    @property
    def file(self) -> str:
        """The name of the file."""
        return f"gpu-{self.name}-{self.content['date']}.json"

    def save(self) -> None:
        """Write the file to all folders."""
        self.content["updated"] = time.time()
        text = json.dumps(self.content, indent=1, ensure_ascii=False) + "\n"
        for folder in self.folders:
            _write(folder / self.file, text)

    def wants(self, step: str, source: str) -> bool:
        """Return whether a step is to be run: it has not ended yet, or failed with other sources."""
        known = self.steps.get(step)
        if known is None:
            return True
        if known["status"] in ("ok", "skipped"):
            return False
        if known["status"] == "cut off" and known["source"] == source:
            return int(known["tries"]) < MOST_TRIES
        return bool(known["source"] != source)

    def begin(self, step: str, block: str, source: str) -> None:
        """Note that a step is about to run."""
        known = self.steps.get(step, {})
        tries = int(known.get("tries", 0)) if known.get("source") == source else 0
        entry = {"block": block, "status": "running", "source": source, "tries": tries + 1, "began": time.time()}
        self.steps[step] = entry
        self.save()

    def end(self, step: str, status: str, seconds: float, result: Any, said: List[str]) -> None:
        """Note how a step ended; ``said``: the end of what it printed, if it did not end well."""
        self.steps[step].update(status=status, seconds=round(seconds, 2), result=result)
        if said:
            self.steps[step]["said"] = said
        self.save()
