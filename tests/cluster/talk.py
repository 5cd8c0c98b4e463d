"""What tests let run on hosts: plain sockets, to see what a network does. Run as a program: ``talk.py WHAT …``."""

from __future__ import annotations

import socket
import sys
import time

PORT = 7000


def accepted(address: str) -> socket.socket:
    with socket.create_server((address, PORT)) as server:
        print("listening", flush=True)
        server.settimeout(100)
        connection, _ = server.accept()
    return connection


def swallow(address: str) -> None:
    """Receive all that comes; print when it began, when it ended, and the number of bytes."""
    with accepted(address) as connection:
        begin, count, buffer = time.monotonic(), 0, bytearray(1 << 20)
        while received := connection.recv_into(buffer):
            count += received
    print(begin, time.monotonic(), count)


def pour(address: str, nbytes: str) -> None:
    """Send so many bytes."""
    with socket.create_connection((address, PORT), timeout=100) as connection:
        connection.sendall(bytes(int(nbytes)))


def echo(address: str) -> None:
    """Send back what comes."""
    with accepted(address) as connection:
        while received := connection.recv(100):
            connection.sendall(received)


def ask(address: str) -> None:
    """For each line, a number of seconds: send a byte, wait so long for an answer, and print what happened."""
    with socket.create_connection((address, PORT), timeout=100) as connection:
        print("connected", flush=True)
        for line in sys.stdin:
            connection.settimeout(float(line))
            try:
                connection.sendall(b"?")
                heard = "answer" if connection.recv(100) else "closed"
            except socket.timeout:
                heard = "silence"
            except ConnectionError:
                heard = "closed"
            print(heard, flush=True)


if __name__ == "__main__":
    {"swallow": swallow, "pour": pour, "echo": echo, "ask": ask}[sys.argv[1]](*sys.argv[2:])
