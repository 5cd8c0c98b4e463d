"""Draws docs/pictures/demo.svg: what ``make demo`` prints, as it appears, in an SVG that needs no script and no player.

``python docs/pictures/recording.py`` needs what `make demo` needs, and takes as long; nothing else should run. Pauses
are shortened. Whoever has switched motion off sees the last lines.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import List, Tuple
from xml.sax.saxutils import escape

PICTURES = Path(__file__).resolve().parent
COMMAND = ["make", "--no-print-directory", "demo"]
LONGEST = 0.7  # seconds of a pause as it is shown
LAST = 0.3  # seconds between the last lines, which come at once: a reader shall see that they are a table
WIDTH, SHOWN = 112, 26  # characters, lines
COLUMN, ROW, MARGIN, BAR = 7.3, 18, 14, 30  # pixels

_STYLE = """
svg {{ font: 12.1px "DejaVu Sans Mono", Menlo, Consolas, monospace; }}
text {{ white-space: pre; fill: #d4d4d4; }}
.line {{ animation: appear 1ms linear both; }}
.all {{ transform: translateY({end}px); animation: scroll {seconds:.2f}s step-end both; }}
@keyframes appear {{ from {{ opacity: 0; }} to {{ opacity: 1; }} }}
@keyframes scroll {{ {scroll} }}
@media (prefers-reduced-motion: reduce) {{ .line, .all {{ animation: none; }} }}
"""


def recorded() -> List[Tuple[float, str]]:
    """Run the demo; return its lines with the seconds at which they came."""
    begin, lines = time.monotonic(), []
    environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(COMMAND, cwd=PICTURES.parents[1], env=environ, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            lines.append((time.monotonic() - begin, line.rstrip("\n")))
    if demo.returncode:
        raise SystemExit(f"make demo has failed, with status {demo.returncode}")
    return lines


def shortened(lines: List[Tuple[float, str]]) -> List[Tuple[float, str]]:
    """Return the lines as they are shown: no pause is longer than ``LONGEST``."""
    shown, before, now = [], 0.0, 0.0
    table = next(number for number, (_, line) in enumerate(lines) if line.startswith("ranks "))
    for number, (at, line) in enumerate(lines):
        now += LAST if number > table else min(at - before, LONGEST)
        before = at
        shown.append((now, line))
    return shown


def drawing(lines: List[Tuple[float, str]], seconds: float) -> str:
    """Return the SVG; ``seconds``: how long the demo took."""
    lines = [(0.0, "$ make demo"), *lines]
    end = lines[-1][0]
    # The text moves up by a line with each line that would not be seen otherwise.
    steps = [(0.0, 0)] + [(at, -ROW * (number - SHOWN + 1)) for number, (at, _) in enumerate(lines) if number >= SHOWN]
    scroll = " ".join(f"{100 * at / end:.2f}% {{ transform: translateY({y}px); }}" for at, y in steps)
    width, height = WIDTH * COLUMN + 2 * MARGIN, SHOWN * ROW + 2 * MARGIN + BAR
    texts = [
        f'<text class="line" style="animation-delay:{at:.2f}s" x="{MARGIN}" y="{BAR + MARGIN + 13 + ROW * number}">'
        f"{escape(line[:WIDTH])}</text>"
        for number, (at, line) in enumerate(lines)
        if line
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}">',
            f"<title>make demo, which takes {seconds:.0f} s; pauses are shortened</title>",
            f"<style>{_STYLE.format(end=steps[-1][1], seconds=end, scroll=scroll)}</style>",
            f'<rect width="{width:.0f}" height="{height:.0f}" rx="8" fill="#1e1e1e"/>',
            *(
                f'<circle cx="{20 + 18 * n}" cy="17" r="5.5" fill="{c}"/>'
                for n, c in enumerate(("#ff5f57", "#febc2e", "#28c840"))
            ),
            f'<clipPath id="screen"><rect y="{BAR}" width="{width:.0f}" height="{height - BAR - 6:.0f}"/></clipPath>',
            '<g clip-path="url(#screen)"><g class="all">',
            *texts,
            "</g></g>",
            "</svg>\n",
        ]
    )


def main() -> None:
    """Record, and draw."""
    lines = recorded()
    (PICTURES / "demo.svg").write_text(drawing(shortened(lines), lines[-1][0]), encoding="utf-8")


if __name__ == "__main__":
    main()
