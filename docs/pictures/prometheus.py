"""Draws docs/pictures/prometheus.png: how long three ranks of a real job wait, in the real Prometheus.

``python docs/pictures/prometheus.py`` needs chromium and prometheus (of Debian), and what the tests need. It takes a
minute.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlencode

PICTURES = Path(__file__).resolve().parent
sys.path.insert(0, str(PICTURES.parents[1] / "tests"))

from launch.browser import browser  # noqa: E402

OPTIONS = "--steps 1000 --sleep 0.03 --late 1 --late-sleep 0.1 --late-from 400 --late-until 600"
TRAIN = ["train.py", *OPTIONS.split()]
CONFIG = """
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: ddl
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""
QUERY = "sum by (rank) (rate(ddl_waited_seconds_total[5s]))"  # the part of its time that each rank waits


def free_port() -> int:
    """Return a port that nobody has now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def main() -> None:
    """Train while Prometheus looks, and take a picture of what it has seen."""
    ports = free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        shutil.copy(PICTURES / "train.py", place)  # what lies beside it here has names of packages
        (place / "config.yml").write_text(CONFIG.format(port=ports[0]))
        server = subprocess.Popen(
            [
                *("prometheus", f"--web.listen-address=127.0.0.1:{ports[1]}", "--log.level=error"),
                *("--config.file=config.yml", "--storage.tsdb.path=data"),
            ],
            cwd=place,
        )
        try:
            line = [sys.executable, "-m", "ddl.launch", "-np", "3", "--metrics", str(ports[0]), *TRAIN]
            subprocess.run(line, cwd=place, check=True)
            with browser() as chromium:
                page = chromium.new_page(viewport={"width": 1200, "height": 860})
                asked = {"g0.expr": QUERY, "g0.tab": 0, "g0.range_input": "1m", "g0.step_input": 1}
                page.goto(f"http://127.0.0.1:{ports[1]}/graph?{urlencode(asked)}")
                page.wait_for_timeout(5000)
                page.screenshot(path=PICTURES / "prometheus.png")
        finally:
            server.terminate()
            server.wait(30)


if __name__ == "__main__":
    main()
