"""The figures as a picture: time of small sizes on the left, bus bandwidth on the right, a line per contestant."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Mapping

from ddl.errors import ConfigError
from ddl.text.units import exact_bytes_text
from ddl.tools.bench.figures import Figures
from ddl.tools.bench.values import LATENCY_BYTES
from ddl.tools.files import say_written

__all__ = ["check", "draw"]

# Each contestant keeps its colour in every picture; others take what is left. Colours that colour-blind eyes part.
_COLOURS = {
    "ddl": "#0072b2",
    "ddl-prepared": "#56b4e9",
    "ddl-private": "#004166",
    "ddl-bf16wire": "#cc79a7",
    "ddl-computing": "#882255",
    "openmpi": "#d55e00",
    "mpich": "#e69f00",
    "gloo": "#009e73",
    "limit": "#444444",
}
_MARKERS = {"ddl": "o", "ddl-prepared": "D", "ddl-private": "s", "openmpi": "^", "mpich": "v", "gloo": "P"}


def check() -> None:
    """Raise ConfigError now, rather than after the measurements, if there is no matplotlib."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"--plot needs matplotlib ({error}): pip install matplotlib") from error


def draw(path: Path, title: str, subtitle: str, figures: Mapping[str, Mapping[int, Figures]]) -> None:
    """Write the picture; ``path`` ends in .png, .svg or what else matplotlib writes."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    sizes = list(next(iter(figures.values())))
    small = [nbytes for nbytes in sizes if nbytes <= LATENCY_BYTES]
    large = [nbytes for nbytes in sizes if nbytes > LATENCY_BYTES] or sizes
    panels = [part for part in (small, large) if part]
    figure, axes = plt.subplots(1, len(panels), figsize=(6.4 * len(panels), 5.2), squeeze=False)
    for panel, part in zip(axes[0], panels):
        for name, of_size in figures.items():
            latency = part is small
            values = [of_size[n].median * 1e6 if latency else of_size[n].busbw for n in part]
            _line(panel, name, part, values)
            panel.set_ylabel("time of a call, µs (median)" if latency else "bus bandwidth, GB/s (median)")
        _axes(panel, part)
        if part is small:
            panel.set_yscale("log")
        else:
            panel.set_ylim(bottom=0)
    axes[0][-1].legend(frameon=False)
    figure.suptitle(title, fontsize=13)
    figure.text(0.5, 0.005, subtitle, ha="center", fontsize=8, color="#555555")
    figure.tight_layout(rect=(0, 0.025, 1, 1))
    figure.savefig(path, dpi=120)
    plt.close(figure)
    say_written(path)


def _line(panel: Any, name: str, sizes: Any, values: Any) -> None:
    style = {"linestyle": "--", "linewidth": 1.5} if name == "limit" else {"marker": _MARKERS.get(name, "x")}
    width = {"linewidth": 2.4} if name == "ddl" else {}
    colour = {"color": _COLOURS[name]} if name in _COLOURS else {}
    panel.plot(sizes, values, label=name, **{"markersize": 6, **style, **width, **colour})


def _axes(panel: Any, sizes: Any) -> None:
    panel.set_xscale("log", base=2)
    panel.set_xticks(sizes)
    panel.set_xticklabels([exact_bytes_text(nbytes) for nbytes in sizes], rotation=35, ha="right")
    panel.minorticks_off()
    panel.set_xlabel("size of the buffer")
    panel.grid(True, which="major", alpha=0.25)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
