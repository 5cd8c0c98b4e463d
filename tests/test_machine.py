"""Which machine this is: asked of the kernel, and what follows where a container hides the answer."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

from ddl.machine import boot_id

ASK = """
from ddl.launch.agent.clocks import kernel_clock
from ddl.machine import boot_id, host_id
print(boot_id(), host_id(), kernel_clock(), sep="|")
"""


def test_it_is_the_kernels_answer() -> None:
    assert boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_where_it_is_hidden_each_host_has_its_name_and_a_clock_of_its_own() -> None:
    hidden = 'mount -t tmpfs none /proc/sys/kernel/random && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", hidden, "-", sys.executable, "-c", ASK]
    answers = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert answers.strip() == f"|{platform.node()}|"
