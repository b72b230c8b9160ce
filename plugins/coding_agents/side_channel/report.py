"""The program that a hook runs: it reports an event to the gateway, and never decides anything.

``report.py SOCKET [EVENT]``; without that argument the event, which is JSON, is on stdin. It prints nothing,
and always ends with status 0 within two seconds, so the program continues as if it had no hook. It uses the
standard library only, because it runs in the sandbox of the program.
"""

import contextlib
import json
import os
import socket
import sys
from typing import Any, cast

KEY_FILE = "hook"
"""The name of the file with the secret, beside the socket."""
MOST = 256 * 1024
"""Bytes of a report; the gateway refuses longer ones."""

_SECONDS = 2.0
_MOST_READ = 16 * 1024 * 1024
_LONGEST, _MOST_FIELDS = 4_000, 12
_NAMES = frozenset(
    (
        *("cost", "cwd", "details", "hook_event_name", "last_assistant_message", "notification_type"),
        *("session_id", "thread-id", "tool_input", "tool_name"),
    )
)
"""The fields that the gateway needs: neither results of tools nor texts of users."""


def reduced(event: dict[str, Any]) -> dict[str, Any]:
    """Return the event without what the gateway does not need, and with short texts."""
    return {name: _short(value, within=True) for name, value in event.items() if name in _NAMES}


def _short(value: object, *, within: bool = False) -> object:
    if isinstance(value, str):
        return value[:_LONGEST]
    if isinstance(value, dict):
        entries = list(cast("dict[str, Any]", value).items())[:_MOST_FIELDS]
        return {name: _short(entry) for name, entry in entries} if within else None
    return value if isinstance(value, int | float | bool) else None


def send(path: str, body: bytes) -> str:
    """Send a report, and return the gateway's answer. Raises OSError."""
    folder, _, name = path.rpartition("/")
    # An address has at most 107 bytes, and the path may have more.
    os.chdir(folder or ".")
    with open(KEY_FILE, encoding="ascii") as file:  # noqa: PTH123 - the import of pathlib takes longer than the rest
        secret = file.read(200).strip()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_SECONDS)
        connection.connect(name)
        connection.sendall(b"hook %s\n" % secret.encode() + body)
        connection.shutdown(socket.SHUT_WR)
        # The program waits for this: what it does next is reported after it.
        return connection.recv(200).decode(errors="replace")


def main(arguments: list[str]) -> None:
    """Report one event."""
    with contextlib.suppress(AttributeError, IndexError, OSError, ValueError, RecursionError):
        given = arguments[1].encode() if len(arguments) > 1 else sys.stdin.buffer.read(_MOST_READ)
        body = json.dumps(reduced(json.loads(given))).encode()
        if len(body) <= MOST:
            send(arguments[0], body)


if __name__ == "__main__":
    main(sys.argv[1:])
