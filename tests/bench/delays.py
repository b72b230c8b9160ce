"""A TCP proxy that makes a server farther away: what arrives is passed on half a round trip later, in order.

Threads, because the timers of event loops count in milliseconds.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import sys
import threading
import time

_CHUNK = 1 << 18


def proxy(host: str, port: int, seconds: float) -> None:
    """Serve until the process is ended; the first line of the output is the address."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    print(f"ready: tcp://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    while True:
        client, _ = listener.accept()
        server = socket.create_connection((host, port))
        for source, target in ((client, server), (server, client)):
            source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            arrived: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
            threading.Thread(target=_read, args=(source, arrived, seconds / 2), daemon=True).start()
            threading.Thread(target=_write, args=(target, arrived), daemon=True).start()


def _read(source: socket.socket, arrived: queue.SimpleQueue[tuple[float, bytes]], delay: float) -> None:
    data = b"?"
    while data:
        try:
            data = source.recv(_CHUNK)
        except OSError:
            data = b""
        arrived.put((time.monotonic() + delay, data))


def _write(target: socket.socket, arrived: queue.SimpleQueue[tuple[float, bytes]]) -> None:
    """Pass on what has arrived; the end of one direction ends the other, too."""
    with contextlib.suppress(OSError):
        while True:
            due, data = arrived.get()
            time.sleep(max(0.0, due - time.monotonic()))
            if not data:
                break
            target.sendall(data)
        target.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    proxy(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
