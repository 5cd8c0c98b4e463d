"""Real shells that complete a line: bash and zsh on a pseudo terminal, and fish.

bash and zsh get the line, then a key that puts every completion of the last word into the line, then a key that writes
the line to a file. So what they answer is read from a file and not from a screen. A shell is started once for many
lines. fish has a command for it.
"""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time
from pathlib import Path
from typing import Dict, List, Sequence

__all__ = ["FishShell", "TerminalShell"]

_PATIENCE = 100.0  # seconds until a shell counts as hung

_START = {
    "bash": r"""
PS1=; bind 'set bell-style none'; bind 'set enable-bracketed-paste off'
[ ! -r /usr/share/bash-completion/bash_completion ] || . /usr/share/bash-completion/bash_completion
. "$SCRIPT"
say() { printf '%s\n' "$READLINE_LINE" >> "$ANSWERS"; READLINE_LINE=; READLINE_POINT=0; }
bind '"\C-xa": insert-completions'
bind -x '"\C-xp": say'
echo ready >> "$ANSWERS"
""",
    "zsh": r"""
unsetopt beep; PS1=; autoload -Uz compinit; compinit -D -u
. $SCRIPT
zle -C insert-all complete-word _generic
zstyle ':completion:insert-all:*' completer _all_matches _complete
zstyle ':completion:insert-all:*' insert true
say() { print -r -- "$BUFFER" >> $ANSWERS; BUFFER= }
zle -N say; bindkey -e; bindkey '^Xa' insert-all; bindkey '^Xp' say
echo ready >> $ANSWERS
""",
}


class TerminalShell:
    """An interactive bash or zsh in ``folder / "files"`` that has read a completion script."""

    def __init__(self, name: str, folder: Path, script: str) -> None:
        self._answers = folder / f"answers.{name}"
        self._answers.touch()
        start, source = folder / f"start.{name}", folder / f"script.{name}"
        start.write_text(_START[name])
        source.write_text(script)
        words = {"bash": ["bash", "--noprofile", "--rcfile", str(start), "-i"], "zsh": ["zsh", "-f", "-i"]}[name]
        environ = {**os.environ, "TERM": "dumb", "ANSWERS": str(self._answers), "SCRIPT": str(source)}
        self._terminal, end = pty.openpty()
        self._process = subprocess.Popen(
            words, stdin=end, stdout=end, stderr=end, cwd=folder / "files", env=environ, start_new_session=True
        )
        os.close(end)
        self._screen = b""
        self._count = 0
        if name == "zsh":
            os.write(self._terminal, f". {start}\n".encode())
        self._answer()

    def complete(self, line: str) -> List[str]:
        """Return the words that the shell puts for the last word of ``line``; without any, that word itself."""
        os.write(self._terminal, line.encode() + b"\x18a\x18p")
        return self._answer()[line.rindex(" ") + 1 :].split()

    def close(self) -> None:
        """End the shell."""
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)

    def _answer(self) -> str:
        self._count += 1
        deadline = time.monotonic() + _PATIENCE
        while True:
            lines = self._answers.read_text().split("\n")[:-1]
            if len(lines) >= self._count:
                return lines[self._count - 1]
            assert time.monotonic() < deadline, f"no answer; it shows {self._screen.decode(errors='replace')}"
            if select.select([self._terminal], [], [], 0.01)[0]:
                self._screen = (self._screen + os.read(self._terminal, 1 << 16))[-4000:]


class FishShell:
    """fish with a completion script. It takes long to start, so it is asked for all ``lines`` at once."""

    def __init__(self, folder: Path, script: str, lines: Sequence[str]) -> None:
        source = folder / "script.fish"
        source.write_text(script)
        program = f"source {source}; for line in $argv; complete -C $line; echo end; end"
        environ = {**os.environ, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "XDG_DATA_HOME": str(folder)}
        done = subprocess.run(
            ["fish", "-c", program, *lines],
            cwd=folder / "files",
            env=environ,
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
        )
        assert done.returncode == 0 and not done.stderr, done.stderr
        answers: List[List[str]] = [[]]
        for line in done.stdout.splitlines():
            if line == "end":
                answers.append([])
            else:
                answers[-1].append(line.split("\t")[0])
        self._known: Dict[str, List[str]] = dict(zip(lines, answers))

    def complete(self, line: str) -> List[str]:
        """Return the words that fish offers for the last word of ``line``."""
        return self._known[line]

    def close(self) -> None:
        """Do nothing: it has ended."""
