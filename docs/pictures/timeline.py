"""Draws docs/pictures/timeline.png: a real job of three ranks, of which one is late, in the real Perfetto.

``python docs/pictures/timeline.py`` needs chromium, and what the tests need. It takes half a minute.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PICTURES = Path(__file__).resolve().parent
sys.path.insert(0, str(PICTURES.parents[1] / "tests"))

from launch.browser import browser  # noqa: E402
from launch.perfetto import perfetto  # noqa: E402

TRAIN = "train.py --steps 30 --sleep 0.01 --late 1 --late-sleep 0.06 --width 1024".split()
STEPS = "select min(ts), max(ts + dur) from slice where name in ('step 20', 'step 21')"


def main() -> None:
    """Train, and take a picture of two steps."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        shutil.copy(PICTURES / "train.py", place)  # what lies beside it here has names of packages
        line = [sys.executable, "-m", "ddl.launch", "-np", "3", "--timeline", "trace.json", *TRAIN]
        subprocess.run(line, cwd=place, check=True)
        options = {"viewport": {"width": 1280, "height": 760}}
        with browser() as chromium, perfetto(chromium, place / "trace.json", **options) as viewer:
            ((begin, end),) = viewer.query(STEPS)
            viewer.look(begin, end)
            viewer.page.wait_for_timeout(3000)
            viewer.page.screenshot(path=PICTURES / "timeline.png")


if __name__ == "__main__":
    main()
