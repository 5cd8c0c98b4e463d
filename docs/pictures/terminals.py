"""Draws docs/pictures/status.svg, top.svg and blame.svg from a real job of four ranks.

One of them is slower, and then stops. ``python docs/pictures/terminals.py`` needs rich. It takes a minute.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ddl.tools.top.table import head, lines, rows

PICTURES = Path(__file__).resolve().parent
TRAIN = "train.py --steps 100000 --sleep 0.05 --late 2 --late-sleep 0.12".split()
WIDTH = 146


def save(console: Console, name: str, title: str) -> None:
    """Write what the console was told as a picture."""
    path = PICTURES / name
    svg = console.export_svg(title=title, clear=True)
    path.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n", encoding="utf-8")


class Terminal:
    """A terminal, and what has been written to it so far."""

    def __init__(self) -> None:
        self._keyboard, self.fd = os.openpty()
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, WIDTH, 0, 0))
        self._written = bytearray()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while True:
            self._written += os.read(self._keyboard, 4096)

    def text(self, start: int = 0) -> str:
        """Return what was written from ``start`` on, as somebody sees it who looks at it now."""
        shown = self._written[start:].decode().replace("\r\n", "\n")
        return "\n".join(line.rstrip("\r").rpartition("\x1b[K")[2] for line in shown.split("\n"))

    def __len__(self) -> int:
        return len(self._written)


def draw_status(terminal: Terminal, console: Console) -> None:
    """Draw the last line of ddlrun's terminal."""
    console.print(Text("$ ddlrun -np 4 train.py"))
    console.print(Text(terminal.text().strip()))
    save(console, "status.svg", "ddlrun -np 4 train.py")


def draw_top(job: subprocess.Popen[bytes], console: Console) -> None:
    """Draw what ``ddl top`` shows, with its colours."""
    top = [sys.executable, "-m", "ddl.tools", "top", str(job.pid), "--once", "--json"]
    picture = json.loads(subprocess.run(top, capture_output=True, check=True).stdout)
    titles, *ranks = lines(picture)[2:]
    console.print(Text(head(picture).replace(sys.executable, "python"), style="bold"))
    console.print(Text(titles, style="bold"))
    for text, row in zip(ranks, rows(picture)):
        console.print(Text(text, style="red" if row.is_odd else "yellow" if row.is_late else ""))
    save(console, "top.svg", f"ddl top {job.pid}")


def draw_blame(job: subprocess.Popen[bytes], terminal: Terminal, console: Console) -> None:
    """Draw what ddlrun says when somebody presses Ctrl-\\."""
    before = len(terminal)
    job.send_signal(signal.SIGQUIT)
    until = time.monotonic() + 20
    while "ddl blame" not in terminal.text(before) and time.monotonic() < until:
        time.sleep(0.1)
    home = str(Path.home())
    console.print(Text("^\\", style="bold"))
    console.print(Text(terminal.text(before).strip().replace(home, "~")))
    save(console, "blame.svg", "ddlrun -np 4 train.py")


def main() -> None:
    """Draw all."""
    console = Console(record=True, width=WIDTH, file=tempfile.TemporaryFile("w"))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        shutil.copy(PICTURES / "train.py", place)  # what lies beside it here has names of packages
        terminal = Terminal()
        line = [sys.executable, "-m", "ddl.launch", "-np", "4", "--timeout", "60", *TRAIN]
        job = subprocess.Popen(line, cwd=place, stderr=terminal.fd, stdout=terminal.fd)
        time.sleep(40)
        draw_status(terminal, console)
        draw_top(job, console)
        (place / "stop").touch()
        time.sleep(7)
        draw_blame(job, terminal, console)
        job.terminate()
        job.wait(30)


if __name__ == "__main__":
    main()
