"""What a record says, for people: a line for each step, and what it means for the targets."""

from __future__ import annotations

from typing import Any, Dict, List

from ddl.text.columns import aligned
from ddl.text.units import duration, exact_bytes_text

__all__ = ["figure_of", "summary"]

EXPOSED_TARGET = 0.5  #: of DDP's over gloo
GLOO = "DDP over gloo"
#: What is said of contestants of ``python -m benchmarks training``.
EXPOSED = {
    "ddl": "ours",
    "ddp-over-ddl": "DDP over ours",
    "ddp-over-ddl+stream": "the same with streams that wait",
    "ddp": GLOO,
    "ddp+malloc": GLOO,
}


def _of_tests(result: Dict[str, Any]) -> str:
    skipped = sum(result["skipped"].values())
    text = f"{result['passed']} passed, {len(result['failed'])} failed, {skipped} skipped"
    if result.get("did not end"):
        text += f"; did not end: {result['did not end']}"
    return text


def _of_sizes(result: Dict[str, Any]) -> str:
    parts = []
    for size, figure in result["sizes"].items():
        if int(size) >= 1 << 20 and "share of the bound" in figure:
            ratio = figure.get("times as fast as gloo")
            against = "" if ratio is None else f", {ratio:.1f} x gloo"
            parts.append(f"{exact_bytes_text(int(size))} {100 * figure['share of the bound']:.0f} %{against}")
    return "; ".join(parts) or f"{len(result['sizes'])} sizes"


def _of_models(result: Dict[str, Any]) -> str:
    parts = []
    for model, figures in result["models"].items():
        exposed = {
            title: figures[name]["exposed_ms"]
            for name, title in EXPOSED.items()
            if figures.get(name, {}).get("exposed_ms") is not None
        }
        text = f"{model}: exposed " + ", ".join(f"{title} {value:.2f} ms" for title, value in exposed.items())
        if "ours" in exposed and GLOO in exposed and exposed["ours"] > EXPOSED_TARGET * exposed[GLOO]:
            text += "; ours is more than half of gloo's"
        parts += [text] if exposed else []
    return "; ".join(parts)


def _of_calls(figures: Dict[str, Dict[str, Any]]) -> str:
    """Return the medians of DDL, by size."""
    return ", ".join(
        f"{exact_bytes_text(int(size))} {duration(figure['median'], 3)}" for size, figure in figures["ddl"].items()
    )


def figure_of(step: Dict[str, Any]) -> str:
    """Return what a step has found, in a line."""
    result = step.get("result") or {}
    if step["status"] == "skipped":
        return str(step.get("result"))
    if "passed" in result:
        return _of_tests(result)
    if "sizes" in result:
        return _of_sizes(result)
    if "models" in result:
        return _of_models(result)
    if "figures" in result:
        return _of_calls(result["figures"])
    if "rates" in result:
        return ", ".join(f"{name} {value / 1e9:.1f} GB/s" for name, value in result["rates"].items())
    plain = [f"{name}: {value}" for name, value in result.items() if isinstance(value, (int, str)) and name != "fake"]
    return "; ".join(plain)[:150]


def summary(content: Dict[str, Any], names: List[str]) -> str:
    """Return the table of a record; ``names``: all steps that there are."""
    rows = []
    for name in names:
        step = content["steps"].get(name)
        if step is None:
            rows.append((name, "not yet", "", ""))
        else:
            rows.append((name, step["status"], f"{step.get('seconds', 0):.0f} s", figure_of(step)))
    lines = aligned([("step", "status", "took"), *(row[:3] for row in rows)])
    return "\n".join([lines[0], *(f"{line}  {row[3]}".rstrip() for line, row in zip(lines[1:], rows))])
