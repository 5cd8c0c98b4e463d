"""The report files that sanitized processes leave (log_path), whoever's children they were."""

from __future__ import annotations

import re
from pathlib import Path
from typing import List

#: A bug of gcc's libtsan: it dies when a thread that Python has started first touches thread-local memory of a library
#: that was loaded later. It takes garbage for the block's address and size, and fails a check or, where the garbage
#: passes that, to map hundreds of terabytes of its own shadow (12 hexadecimal digits and more: no request of ours).
_RUNTIME_DEATH = re.compile(
    r"handle_tls_addr|DTLS_on_tls_get_addr|tls_get_addr.*CHECK failed"
    r"|ThreadSanitizer failed to allocate 0x[1-9a-f][0-9a-f]{11,} ",
    re.DOTALL,
)
#: By what a report is known.
_SAYS = {
    "thread": "WARNING: ThreadSanitizer",
    "address": "ERROR: AddressSanitizer",
    "undefined": "runtime error: ",
}
_SHOWN = 5
_SHOWN_LINES = 70


class Reports:
    """The files ``report.PID`` in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def files(self) -> List[Path]:
        return sorted(path for path in self.folder.iterdir() if path.is_file() and path.stat().st_size > 0)

    def count(self) -> int:
        return len(self.files())

    def take(self, sanitizer: str) -> bool:
        """Return whether there is a report of ``sanitizer``, and remove it."""
        taken = [path for path in self.files() if _SAYS[sanitizer] in path.read_text(errors="replace")]
        for path in taken:
            path.unlink()
        return bool(taken)

    def set_aside_runtime_deaths(self) -> int:
        """Move the reports that say no more than that the runtime library died; return how many there were."""
        aside = self.folder / "runtime-died"
        moved = 0
        for path in self.files():
            text = path.read_text(errors="replace")
            if _RUNTIME_DEATH.search(text) and _SAYS["thread"] not in text:
                aside.mkdir(exist_ok=True)
                path.rename(aside / path.name)
                moved += 1
        return moved

    def show(self) -> None:
        """Print the first lines of the first reports; the rest stays in the files."""
        files = self.files()
        for path in files[:_SHOWN]:
            lines = path.read_text(errors="replace").splitlines()
            print(f"--- {path}", *lines[:_SHOWN_LINES], sep="\n")
            if len(lines) > _SHOWN_LINES:
                print(f"… {len(lines) - _SHOWN_LINES} more lines")
        if len(files) > _SHOWN:
            print(f"… and {len(files) - _SHOWN} more files in {self.folder}")
