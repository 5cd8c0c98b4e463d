"""Serves the page: plain HTTP of Python's own server, a thread for each request, and server-sent events.

Whoever has the token may look. It stands behind the ``#`` of the printed address, a part that a browser sends to
nobody; the page exchanges it for a cookie at ``/enter``. Everything that tells of the job needs the cookie, and
requests that do something (``/dump``) need the token, too. Requests under a foreign host name are refused, so that no
other page in the browser gets here by a name of its own that leads to 127.0.0.1.
"""

from __future__ import annotations

import hmac
import http.cookies
import http.server
import ipaddress
import json
import secrets
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, Dict, Optional
from urllib.parse import parse_qs, urlsplit

from ddl.launch.ask.listening import ListeningAddress
from ddl.launch.dashboard.source import PageSource

__all__ = ["PageServer"]

_FILES = Path(__file__).resolve().parent / "files"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_MOST_VIEWERS = 32
_MOST_CONNECTIONS = 96
_PAUSE = 0.02  # seconds
_PATIENCE = 10.0  # seconds for a request to come, and for a viewer to take what was sent
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_COME_AGAIN = "open the address that was printed, with all that stands behind the #"


class PageServer:
    """Is bound when it is made, and serves from ``start`` on. ConfigError, with ``option``, if it cannot be bound."""

    def __init__(self, address: ListeningAddress, option: str, source: PageSource) -> None:
        self._address = address
        self._http = _PageHttp(address, option, source)
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(0.2,), name="ddl-page-server", daemon=True
        )

    @property
    def url(self) -> str:
        """What to open in a browser."""
        address = self._address._replace(port=self._http.server_port)
        if address.everywhere:
            address = address._replace(host=socket.gethostname())
        return f"http://{address}/#{self._http.token}"

    def announce(self, words: str) -> None:
        """Print the address on stderr, and who else might read what the page shows."""
        print(f"{words} {self.url}", file=sys.stderr, flush=True)
        if not self._address.loopback:
            print(
                "warning: what the page shows crosses the network unencrypted, and so does its token; "
                "on 127.0.0.1 and through ssh -L it does not",
                file=sys.stderr,
                flush=True,
            )

    def start(self) -> None:
        """Begin to serve. Once."""
        self._thread.start()

    def close(self, patience: float = 0.0) -> None:
        """Serve nobody any more; those who follow have ``patience`` seconds to read the end. Idempotent."""
        for _ in range(int(patience / _PAUSE)):  # no clock: on a busy machine all threads may have stood still for long
            if self._http.viewers:
                time.sleep(_PAUSE)
        if self._thread.ident is not None:
            self._http.shutdown()
        self._http.server_close()


class _PageHttp(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 32

    def __init__(self, address: ListeningAddress, option: str, source: PageSource) -> None:
        self.source = source
        self.token = secrets.token_urlsafe(24)
        self.session = secrets.token_urlsafe(24)
        self.cookie = f"ddl_page_{secrets.token_hex(4)}"  # cookies of a host are the same for all its ports
        self.viewers = 0
        self.counting = threading.Lock()
        self._connections = 0
        super().__init__(address, _PageRequest, bind_and_activate=False)
        self.socket.close()  # made for IPv4; and to bind it would ask for this host's name, which may take seconds
        self.socket = address.listen(option)
        self.server_name, self.server_port = address.host, int(self.socket.getsockname()[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection, unless there are too many."""
        with self.counting:
            full = self._connections >= _MOST_CONNECTIONS
            self._connections += not full
        if full:
            return self.shutdown_request(request)
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be started
            with self.counting:
                self._connections -= 1
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self.counting:
                self._connections -= 1

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a browser that goes away, or reads too slowly, is no matter of the job's."""

    def knows_host(self, header: str) -> bool:
        """Whether a request with this ``Host`` is for us: an address, or a name that no stranger can give away."""
        name = header.rpartition(":")[0] if header.rpartition(":")[2].isdigit() else header
        name = name.strip("[]").lower()
        bound = ListeningAddress(self.server_name, 0)
        if name in ("localhost", bound.host.lower()):
            return True
        try:
            own = ipaddress.ip_address(name)
        except ValueError:
            return bound.everywhere and name == socket.gethostname().lower()
        return own.is_loopback or bound.everywhere


class _PageRequest(http.server.BaseHTTPRequestHandler):
    server: _PageHttp
    timeout = _PATIENCE
    server_version, sys_version = "ddl", ""

    def do_GET(self) -> None:
        """Answer with a file of the page, or with what is known of the job."""
        url = urlsplit(self.path)
        if not self.server.knows_host(self.headers.get("Host", "")):
            return self._refuse(421, "this page has another address")
        if url.path == "/enter":
            return self._enter()
        if url.path in ("/mode", "/story", "/feed", "/moment", "/history"):
            if not self._is_known:
                return self._refuse(403, _COME_AGAIN)
            return self._tell(url.path, parse_qs(url.query))
        return self._send_file("page.html" if url.path == "/" else url.path[1:])

    def do_POST(self) -> None:
        """Take a dump, for those who have the token, too."""
        if not self.server.knows_host(self.headers.get("Host", "")):
            return self._refuse(421, "this page has another address")
        if urlsplit(self.path).path != "/dump":
            return self._refuse(405, "only GET, but for /dump")
        if not self._is_known or not self._has_token:
            return self._refuse(403, _COME_AGAIN)
        self._send(200, json.dumps(self.server.source.dump()).encode(), "application/json")

    def send_error(self, code: int, message: Optional[str] = None, explain: Optional[str] = None) -> None:
        """Refuse what is no request, or has another method, in plain text."""
        self._refuse(code, message or "refused")

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing on the job's stderr."""

    @property
    def _has_token(self) -> bool:
        return hmac.compare_digest(self.headers.get("X-DDL-Token", "").encode(), self.server.token.encode())

    @property
    def _is_known(self) -> bool:
        try:
            cookies = http.cookies.SimpleCookie(self.headers.get("Cookie", ""))
        except http.cookies.CookieError:
            return False
        cookie = cookies.get(self.server.cookie)
        return cookie is not None and hmac.compare_digest(cookie.value.encode(), self.server.session.encode())

    def _enter(self) -> None:
        if not self._has_token:
            return self._refuse(403, _COME_AGAIN)
        cookie = f"{self.server.cookie}={self.server.session}; Path=/; HttpOnly; SameSite=Strict"
        self._send(200, b"{}", "application/json", {"Set-Cookie": cookie})

    def _tell(self, path: str, query: Dict[str, Any]) -> None:
        source = self.server.source
        if path == "/mode":
            return self._send(200, json.dumps({"mode": source.mode}).encode(), "application/json")
        if path == "/story":
            return self._send(200, source.story(), "application/json")
        if path == "/feed":
            return self._feed()
        if path == "/moment":
            try:
                moment = source.moment(float(query["t"][0]))
            except (KeyError, ValueError):
                moment = None
            if moment is None:
                return self._refuse(404, "there is no such moment")
            return self._send(200, moment, "application/json")
        history = source.history()
        if history is None:
            return self._refuse(404, "the history cannot be read")
        name = {"Content-Disposition": 'attachment; filename="job.ddl-history.gz"'}
        self._send(200, history, "application/gzip", name)

    def _feed(self) -> None:
        """Send events until the job ends, the viewer goes, or does not read for ``_PATIENCE`` seconds."""
        server = self.server
        with server.counting:
            full = server.viewers >= _MOST_VIEWERS
            server.viewers += not full
        if full:
            return self._refuse(503, f"{_MOST_VIEWERS} viewers look at this page already; close one of them")
        try:
            self._begin(200, "text/event-stream", {})
            for data in server.source.follow():
                self.wfile.write(data)
        except OSError:  # gone, or too slow
            pass
        finally:
            with server.counting:
                server.viewers -= 1

    def _send_file(self, name: str) -> None:
        path = _FILES / name
        # Only what is there by its plain name: no way leads out of the folder.
        if not any(path == known for known in _FILES.rglob("*") if known.suffix in _TYPES):
            return self._refuse(404, "there is no such file")
        self._send(200, path.read_bytes(), _TYPES[path.suffix])

    def _refuse(self, status: int, text: str) -> None:
        self._send(status, f"{text}\n".encode(), "text/plain")

    def _send(self, status: int, data: bytes, kind: str, more: Optional[Dict[str, str]] = None) -> None:
        self._begin(status, kind, {"Content-Length": str(len(data)), **(more or {})})
        self.wfile.write(data)

    def _begin(self, status: int, kind: str, more: Dict[str, str]) -> None:
        self.send_response(status)
        text = kind.startswith("text/")
        headers = {"Content-Type": f"{kind}; charset=utf-8" if text else kind, **_HEADERS, **more}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
