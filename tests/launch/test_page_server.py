"""Who may see the page, and who may not: the server of ``ddlrun --dashboard``, without a browser."""

from __future__ import annotations

import http.client
import json
import re
import socket
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Optional, Tuple

import pytest
from ipv6 import needs_ipv6
from launch.launcher import Launcher, eventually
from launch.simulated_page import SimulatedJob

from ddl.errors import ConfigError
from ddl.launch.ask.listening import ListeningAddress
from ddl.launch.dashboard.live import LiveSource
from ddl.launch.dashboard.server import PageServer

pytestmark = pytest.mark.processes
Answer = Tuple[int, Dict[str, str], bytes]


class Site:
    """The page of a simulated job, and requests to it."""

    def __init__(self, job: SimulatedJob, address: str) -> None:
        match = re.search(r"http://127\.0\.0\.1:(\d+)/#(\S+)", address)
        assert match is not None
        self.job, self.port, self.token = job, int(match[1]), match[2]

    def ask(self, path: str, method: str = "GET", host: Optional[str] = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=100)
        sent = {"Host": host or f"127.0.0.1:{self.port}", **{k.replace("_", "-"): v for k, v in headers.items()}}
        connection.request(method, path, headers=sent)
        answer = connection.getresponse()
        data = answer.read() if path != "/feed" or answer.status != 200 else b""
        connection.close()
        return answer.status, dict(answer.getheaders()), data

    def cookie(self) -> str:
        status, headers, _ = self.ask("/enter", X_DDL_Token=self.token)
        assert status == 200
        return headers["Set-Cookie"].partition(";")[0]


@pytest.fixture
def site(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Site]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # no ddlrun is there to be asked for dumps
    job = SimulatedJob(2, 2)
    job.second()
    yield Site(job, capfd.readouterr().err)
    job.page.end(job.time, 0, None)


def test_the_token_opens_the_page_and_nothing_else_does(site: Site) -> None:
    cookie = site.cookie()
    assert site.ask("/story", Cookie=cookie)[0] == 200
    _, headers, _ = site.ask("/enter", X_DDL_Token=site.token)
    assert headers["Set-Cookie"].endswith("; Path=/; HttpOnly; SameSite=Strict")
    assert site.token not in headers["Set-Cookie"]
    for token in ("", "x", site.token[:-1], site.token + "x", "é"):
        status, headers, text = site.ask("/enter", X_DDL_Token=token)
        assert status == 403 and "Set-Cookie" not in headers and b"open the address that was printed" in text
    name = cookie.partition("=")[0]
    for wrong in ("", f"{name}=x", f"{name}={site.token}", "x=" + cookie.partition("=")[2], '"'):
        for path in ("/story", "/mode", "/feed", "/history", "/moment?t=1"):
            status, _, text = site.ask(path, Cookie=wrong)
            assert status == 403 and b"train.py" not in text
    assert site.ask(f"/story?token={site.token}")[0] == 403


def test_a_dump_needs_the_token_too(site: Site) -> None:
    cookie = site.cookie()
    assert site.ask("/dump", "POST", Cookie=cookie)[0] == 403
    assert site.ask("/dump", "POST", X_DDL_Token=site.token)[0] == 403
    status, _, data = site.ask("/dump", "POST", Cookie=cookie, X_DDL_Token=site.token)
    assert status == 200 and "there are no dumps: process" in json.loads(data)["text"]


def test_other_hosts_and_other_methods_are_refused(site: Site) -> None:
    cookie = site.cookie()
    for host in ("evil.example", f"evil.example:{site.port}", "127.0.0.1.evil.example", "10.0.0.1", "localhost.x:1"):
        for path in ("/", "/story", "/enter"):
            assert site.ask(path, host=host, Cookie=cookie, X_DDL_Token=site.token)[0] == 421
        assert site.ask("/dump", "POST", host, Cookie=cookie, X_DDL_Token=site.token)[0] == 421
    for host in (f"localhost:{site.port}", "localhost:8080", "127.0.0.1", "[::1]:8080"):  # as ssh -L makes them
        assert site.ask("/story", host=host, Cookie=cookie)[0] == 200
    for method in ("PUT", "DELETE", "OPTIONS", "HEAD"):
        assert site.ask("/", method)[0] == 501
    assert site.ask("/story", "POST", Cookie=cookie, X_DDL_Token=site.token)[0] == 405


def test_nothing_but_the_files_of_the_page(site: Site) -> None:
    for path in ("/page.js", "/uplot/uPlot.min.css", "/icon.svg", "/"):
        status, headers, data = site.ask(path)
        assert status == 200 and data
        assert headers["Content-Security-Policy"].startswith("default-src 'self';")
        assert headers["X-Content-Type-Options"] == "nosniff" and headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cache-Control"] == "no-store"
    for path in (
        "/../server.py",
        "/uplot/../../server.py",
        "/%2e%2e/server.py",
        "//etc/passwd",
        "/uplot",
        "/x",
        "/uplot/LICENSE",
    ):
        assert site.ask(path)[0] == 404
    page = site.ask("/")[2].decode()
    assert "<script>" not in page and " style=" not in page and "http://" not in page and "https://" not in page


def test_a_viewer_who_does_not_read_and_too_many_viewers(site: Site) -> None:
    cookie = site.cookie()

    def look() -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", site.port), timeout=100)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
        sock.sendall(f"GET /feed HTTP/1.0\r\nHost: localhost\r\nCookie: {cookie}\r\n\r\n".encode())
        return sock

    viewers = [look() for _ in range(32)]
    server = site.job.page._server
    assert server is not None and eventually(lambda: server._http.viewers == 32)
    status, _, text = site.ask("/feed", Cookie=cookie)
    assert status == 503 and b"32 viewers look at this page already" in text
    follower = site.job.page._source.follow()
    assert next(follower).startswith(b"event: story\ndata: {")
    for _ in range(300):
        site.job.second()  # nobody waits for them: they would not read before it returns
    assert eventually(lambda: f'"t":{site.job.time}' in site.ask("/story", Cookie=cookie)[2].decode())
    assert list(follower) == []  # who is so far behind begins anew
    for viewer in viewers:
        viewer.close()
    site.job.page.end(site.job.time, 0, None)
    assert eventually(lambda: server._http.viewers == 0)


def test_an_address_that_cannot_be_used() -> None:
    def address(text: str) -> ListeningAddress:
        return ListeningAddress.parse("--dashboard", text, any_port=True)

    assert address("127.0.0.1:80") == ("127.0.0.1", 80)
    assert address("8080") == address(":8080") == ("127.0.0.1", 8080)
    assert address("0.0.0.0") == ("0.0.0.0", 0) and not address("0.0.0.0").loopback and address("[::1]:0").loopback
    assert address("[::1]") == ("::1", 0) and address("[::]:80").everywhere and address("0.0.0.0").everywhere
    for text in ("", "127.0.0.1:99999", "a b", "1.2.3.4:x", "1:2:3", "::1"):
        with pytest.raises(ConfigError, match="--dashboard .*: it must be a port, or an address and a port, .* alone"):
            address(text)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--dashboard: .* cannot listen on 127.0.0.1:{port}: Address already"):
            PageServer(address(str(port)), "--dashboard", LiveSource())


@pytest.mark.few(5)
@pytest.mark.parametrize("hosts", [("-np", "2"), ("-H", "localhost:1,127.0.0.1:1")])
@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--dashboard=203.0.113.1", "cannot listen on 203.0.113.1:0: Cannot assign requested address"),
        ("--dashboard=1:2:3", "it must be a port, or an address and a port"),
        ("--history=/nowhere/file", "--history /nowhere/file: it cannot be written"),
    ],
)
def test_no_rank_starts_if_the_page_cannot_be_served(
    launcher: Launcher, script: Callable[[str], str], hosts: List[str], option: str, words: str
) -> None:
    done = launcher.run(*hosts, option, script("print('begun')"))
    assert done.returncode == 2 and words in done.stderr and done.stdout == ""
    assert done.stderr.count("ddlrun:") == 1 and "Traceback" not in done.stderr


@needs_ipv6
def test_an_address_of_ipv6_is_known_by_its_brackets() -> None:
    server = PageServer(ListeningAddress("::1", 0), "--dashboard", LiveSource())
    assert re.match(r"http://\[::1\]:\d+/#", server.url)
    http_server = server._http
    with http_server:
        for bound, known, strange in [
            ("fd77::1", ["[fd77::1]:80", "[FD77::1]", "[::1]:80", "localhost:80"], ["[fd77::2]:80", "evil.example"]),
            ("::", ["[fd77::2]:80", "10.1.0.1", f"{socket.gethostname()}:80"], ["evil.example:80"]),
        ]:
            http_server.server_name = bound
            assert all(map(http_server.knows_host, known)) and not any(map(http_server.knows_host, strange))
