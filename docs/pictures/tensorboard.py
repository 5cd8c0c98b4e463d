"""Draws docs/pictures/tensorboard.png: what three ranks of a real job have logged, in the real TensorBoard.

``python docs/pictures/tensorboard.py`` needs chromium, and what the tests need. It takes a minute.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PICTURES = Path(__file__).resolve().parent
sys.path.insert(0, str(PICTURES.parents[1] / "tests"))

from launch.browser import browser  # noqa: E402

OPTIONS = "--steps 300 --sleep 0.03 --late 1 --late-sleep 0.1 --late-from 100 --late-until 200 --log runs"
TRAIN = ["train.py", *OPTIONS.split()]

WIDTH = 1600


def main() -> None:
    """Train, and take a picture of the three charts."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        shutil.copy(PICTURES / "train.py", place)  # what lies beside it here has names of packages
        subprocess.run([sys.executable, "-m", "ddl.launch", "-np", "3", *TRAIN], cwd=place, check=True)
        line = [sys.executable, "-m", "tensorboard.main", "--logdir", "runs", "--port", "0", "--host", "127.0.0.1"]
        server = subprocess.Popen(line, cwd=place, stderr=subprocess.PIPE, text=True)
        assert server.stderr is not None
        address = next(match[0] for match in map(re.compile(r"http://\S+").search, server.stderr) if match)
        try:
            with browser() as chromium:
                page = chromium.new_page(viewport={"width": WIDTH, "height": 550})
                page.goto(f"{address}?smoothing=0#timeseries")
                page.get_by_text("ddl/waiting").first.wait_for(timeout=60_000)
                page.mouse.click(WIDTH - 37, 134)  # closes the pane with its settings
                page.wait_for_timeout(5000)
                page.screenshot(path=PICTURES / "tensorboard.png")
        finally:
            server.terminate()
            server.wait(30)


if __name__ == "__main__":
    main()
