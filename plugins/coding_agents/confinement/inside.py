"""The way out of the sandbox, as seen by the program: an HTTP proxy, and its model service, on loopback.

``inside.py SOCKET PROGRAM ARGUMENT...`` listens in the network namespace of the program, leaves a process
that serves, and becomes the program. Each connection becomes one on the keeper's sibling socket, where the
gateway decides about it: this process has no more rights than the program. While the gateway is away,
connections wait for it. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable

HOST, PROXY_PORT, SERVICE_PORT = "127.0.0.1", 3128, 3129
MOST_CONNECTIONS = 64
"""Connections at once; further ones wait."""
_HEAD_BYTES, _LINE_BYTES, _CHUNK = 16_384, 400, 65_536
_HEAD_SECONDS, _GATEWAY_SECONDS, _PAUSE_SECONDS = 60.0, 60.0, 0.5
_CONNECT = re.compile(rb"CONNECT \[?([0-9A-Za-z.:_-]{1,253}?)\]?:([0-9]{1,5}) HTTP/1\.[01]\r\n")
_UNAVAILABLE = "unavailable "

Serve = Callable[[str, socket.socket], socket.socket]


class Refused(Exception):
    """A request that gets an error as its answer. ``status`` is that of HTTP."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def open_stream(path: str, line: bytes) -> socket.socket:
    """Open a stream to the gateway for a service; wait for a gateway. Raises Refused."""
    ends = time.monotonic() + _GATEWAY_SECONDS
    while True:
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            stream.connect(path)
            stream.sendall(line)
            answer = _read_until(stream, b"\n", _LINE_BYTES).decode(errors="replace").strip()
        except OSError as error:
            answer = f"{_UNAVAILABLE}{error.strerror or error}"
        if answer == "ok":
            return stream
        stream.close()
        if answer and not answer.startswith(_UNAVAILABLE):
            raise Refused(403, answer.removeprefix("refused "))
        if time.monotonic() > ends:
            raise Refused(503, answer or "the gateway closed the connection")
        time.sleep(_PAUSE_SECONDS)


def serve_proxy(path: str, client: socket.socket) -> socket.socket:
    """Read a request to connect, and return its stream. Raises Refused and OSError."""
    found = _CONNECT.match(_read_until(client, b"\r\n\r\n", _HEAD_BYTES))
    if found is None:
        raise Refused(405, "this proxy only connects, with CONNECT, for https addresses")
    stream = open_stream(path, b"connect %s %s\n" % found.groups())
    client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
    return stream


def serve_service(path: str, client: socket.socket) -> socket.socket:
    """Return the stream to the model service. Raises Refused."""
    return open_stream(path, b"http\n")


def _read_until(source: socket.socket, end: bytes, most: int) -> bytes:
    """Read up to an end, and not beyond it. Raises Refused if it is too far, OSError."""
    data = bytearray()
    while not data.endswith(end):
        if len(data) >= most:
            raise Refused(431, f"the head of the request has more than {most} bytes")
        piece = source.recv(1)
        if not piece:
            break
        data += piece
    return bytes(data)


def _handle(path: str, client: socket.socket, serve: Serve, places: threading.Semaphore) -> None:
    with places, client, contextlib.suppress(OSError):
        client.settimeout(_HEAD_SECONDS)
        try:
            stream = serve(path, client)
        except Refused as error:
            text = f"trunkline: {error}\n"
            head = f"HTTP/1.1 {error.status} Refused\r\nContent-Type: text/plain\r\nConnection: close\r\n"
            client.sendall(f"{head}Content-Length: {len(text.encode())}\r\n\r\n{text}".encode())
            return
        client.settimeout(None)
        with stream:
            back = threading.Thread(target=_pump, args=(stream, client), daemon=True)
            back.start()
            _pump(client, stream)
            back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    """Pass on what one side sends, until it ends."""
    try:
        while data := source.recv(_CHUNK):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def _accept(path: str, listener: socket.socket, serve: Serve, places: threading.Semaphore) -> None:
    while True:
        client, _ = listener.accept()
        threading.Thread(target=_handle, args=(path, client, serve, places), daemon=True).start()


def _become_server(path: str, listeners: list[tuple[socket.socket, Serve]]) -> None:
    """Serve until the namespace ends; keep nothing of the program's terminal."""
    os.setsid()
    # A path of a socket has at most 107 bytes, fewer than those of some folders.
    os.chdir(os.path.dirname(path))  # noqa: PTH120
    path = os.path.basename(path)  # noqa: PTH119
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    threading.stack_size(256 * 1024)
    places = threading.Semaphore(MOST_CONNECTIONS)
    for listener, serve in listeners[1:]:
        threading.Thread(target=_accept, args=(path, listener, serve, places), daemon=True).start()
    _accept(path, *listeners[0], places)


def main(path: str, *argv: str) -> None:
    """Listen, leave a process that serves, and become the program."""
    listeners: list[tuple[socket.socket, Serve]] = [
        (socket.create_server((HOST, PROXY_PORT), backlog=128), serve_proxy),
        (socket.create_server((HOST, SERVICE_PORT), backlog=128), serve_service),
    ]
    if os.fork() == 0:
        try:
            # A grandchild: the program shall have no child that it did not start.
            if os.fork() == 0:
                _become_server(path, listeners)
        finally:
            os._exit(0)
    os.wait()
    try:
        os.execvp(argv[0], list(argv))  # noqa: S606 - it becomes the program of its arguments
    except OSError as error:
        os.write(2, f"trunkline: {argv[0]} cannot be started: {error.strerror or error}\r\n".encode())
        os._exit(127)


if __name__ == "__main__":
    main(*sys.argv[1:])
