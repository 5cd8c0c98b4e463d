"""How other programs of the user, such as ``ddl dump JOB``, ask a ddlrun on this host for something: a Unix socket.

The socket is named after ddlrun's process, in a folder that only its user may enter. A client sends one line of JSON:

``{"do": "dump"}``
    It gets one line: ``text`` for people, and ``folder``, where the dumps are, empty if there are none.
``{"do": "watch"}``
    It gets a line each second, until the job ends: ``job`` and ``ranks`` (job_display.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import stat
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional

from ddl.errors import ConfigError
from ddl.launch.agent.loop import Handlers

__all__ = ["JobRequests", "answers_of", "ask_job", "jobs_here"]

_LONGEST = 4096  # bytes of a request
_MOST = 16  # clients at a time
_PICTURE = 4 << 20  # bytes that a line about a large job may have


class JobRequests:
    """ddlrun's side. ``dump`` is called for such a request, and ``answer`` tells those who wait for it.

    ``watch`` is called for the other request, and ``show`` tells those who watch. Where the folder cannot be made,
    nobody can ask, and ``problem`` says why.
    """

    def __init__(self, dump: Callable[[], None], watch: Callable[[], None]) -> None:
        self._dump = dump
        self._watch = watch
        self._clients: Dict[socket.socket, bytes] = {}  # and what they have said so far
        self._waiting: List[socket.socket] = []
        self._watching: List[socket.socket] = []
        self._listener: Optional[socket.socket] = None
        self.problem = ""
        try:
            self._path = _folder(os.environ) / f"{os.getpid()}.sock"
            self._path.unlink(missing_ok=True)  # of a process with our number, which was killed
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._listener.bind(str(self._path))
            self._listener.listen()
            self._listener.setblocking(False)
        except (ConfigError, OSError) as error:
            self.problem = f"nobody can ask this ddlrun for dumps: {error}"
            self.close()

    def handlers(self) -> Handlers:
        """Return what to wait for."""
        listener, clients = self._listener, dict(self._clients)
        calling = {} if listener is None else {listener.fileno(): (select.POLLIN, self._accept)}
        return {**calling, **{sock.fileno(): (select.POLLIN, partial(self._hear, sock)) for sock in clients}}

    def answer(self, message: Mapping[str, Any]) -> None:
        """Tell all who wait for a dump."""
        waiting, self._waiting = self._waiting, []
        for sock in waiting:
            self._say(sock, message)

    @property
    def watched(self) -> bool:
        """Whether anybody watches the job."""
        return bool(self._watching)

    def show(self, message: Mapping[str, Any]) -> None:
        """Tell all who watch. Who has not read the lines before in time is told nothing any more."""
        line = json.dumps(dict(message)).encode() + b"\n"
        for sock in list(self._watching):
            try:
                whole = sock.send(line) == len(line)
            except OSError:  # the client has gone, or does not read
                whole = False
            if not whole:
                self._watching.remove(sock)
                sock.close()

    def close(self) -> None:
        """Hear nobody any more. Idempotent."""
        for sock in [*self._clients, *self._waiting, *self._watching]:
            sock.close()
        self._clients, self._waiting, self._watching = {}, [], []
        if self._listener is not None:
            self._listener.close()
            with contextlib.suppress(OSError):  # never bound, or somebody has tidied up
                self._path.unlink()
        self._listener = None

    def _accept(self) -> None:
        assert self._listener is not None
        with contextlib.suppress(BlockingIOError):
            sock, _ = self._listener.accept()
            sock.setblocking(False)
            if len(self._clients) + len(self._waiting) + len(self._watching) < _MOST:
                self._clients[sock] = b""
            else:
                sock.close()

    def _hear(self, sock: socket.socket) -> None:
        try:
            data = sock.recv(_LONGEST)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        text = self._clients.pop(sock) + data
        if not data or len(text) > _LONGEST:
            sock.close()
        elif not text.endswith(b"\n"):
            self._clients[sock] = text
        elif _request(text) == "dump":
            self._waiting.append(sock)
            self._dump()
        elif _request(text) == "watch":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _PICTURE)
            self._watching.append(sock)
            self._watch()
        else:
            self._say(sock, {"text": f"ddlrun does not understand {text.decode(errors='replace').strip()!r}"})

    @staticmethod
    def _say(sock: socket.socket, message: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the client has gone
            sock.sendall(json.dumps(dict(message)).encode() + b"\n")
        sock.close()


def ask_job(job: int, request: str, seconds: float) -> Dict[str, Any]:
    """Return what the ddlrun that is process ``job`` answers.

    ConfigError if there is no such ddlrun, or if it does not answer within ``seconds``.
    """
    answer = next(answers_of(job, request, seconds), None)
    if answer is None:
        raise ConfigError(f"ddlrun (process {job}) has ended while it was asked")
    return answer


def answers_of(job: int, request: str, seconds: float) -> Iterator[Dict[str, Any]]:
    """Yield what the ddlrun that is process ``job`` answers, line by line; errors as of ``ask_job``."""
    path = _folder(os.environ) / f"{job}.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(seconds)
        try:
            sock.connect(str(path))
            sock.sendall(json.dumps({"do": request}).encode() + b"\n")
            with sock.makefile("rb") as file:
                while line := file.readline():
                    answer = json.loads(line)
                    if not isinstance(answer, dict):
                        raise ConfigError(f"ddlrun (process {job}) answers {answer!r:.100}; is it of another version?")
                    yield answer
        except (FileNotFoundError, ConnectionRefusedError):
            known = ", ".join(map(str, jobs_here())) or "none"
            raise ConfigError(
                f"process {job} is no ddlrun of this user on this host (there are: {known}); "
                "name the process of ddlrun, and ask on the host where it runs"
            ) from None
        except socket.timeout:
            raise ConfigError(f"ddlrun (process {job}) has not answered within {seconds:g} s: is it stopped?") from None
        except (OSError, ValueError) as error:
            raise ConfigError(f"ddlrun (process {job}) has ended while it was asked: {error}") from error


def jobs_here() -> List[int]:
    """Return the processes of this user's ddlruns on this host."""
    sockets = [path.stem for path in _folder(os.environ).glob("*.sock") if path.stem.isdigit()]
    return sorted(int(name) for name in sockets if os.path.exists(f"/proc/{name}"))


def _request(text: bytes) -> str:
    try:
        message = json.loads(text)
    except ValueError:
        return ""
    return str(message.get("do")) if isinstance(message, dict) else ""


def _folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of the sockets, which only this user may enter; ConfigError if it is somebody else's."""
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    path = Path(runtime) / "ddl" if runtime and os.path.isdir(runtime) else Path(f"/tmp/ddl-{os.getuid()}")
    path.mkdir(mode=0o700, exist_ok=True)
    entry = path.lstat()
    if not stat.S_ISDIR(entry.st_mode) or entry.st_uid != os.getuid() or entry.st_mode & 0o077:
        raise ConfigError(f"{path} is not a folder that only this user may enter; remove it, or set XDG_RUNTIME_DIR")
    return path
