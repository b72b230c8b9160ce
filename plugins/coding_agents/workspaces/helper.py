"""The program that git asks for credentials. It has none: it asks the gateway over a Unix socket.

``helper.py SOCKET get``, with git's attributes on stdin, as ``git help credentials`` describes. It uses the
standard library only, because it also runs in the sandbox of an agent. If there are no credentials, git is
told to stop, and the reason is on stderr.
"""

import os
import socket
import sys

SECONDS = 20
MOST = 65_536


def ask(path: str, attributes: bytes) -> bytes:
    """Return the gateway's answer. Raises OSError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(SECONDS)
        # An address has at most 107 bytes, and the path may have more.
        folder, _, name = path.rpartition("/")
        os.chdir(folder or ".")
        connection.connect(name)
        connection.sendall(b"credential\n" + attributes.rstrip(b"\n") + b"\n\n")
        answer = b""
        while len(answer) < MOST and (piece := connection.recv(MOST)):
            answer += piece
        return answer


def main(arguments: list[str]) -> int:
    """Answer one question of git."""
    if len(arguments) != 2 or arguments[1] != "get":
        return 0
    try:
        answer = ask(arguments[0], sys.stdin.buffer.read(MOST)).decode(errors="replace")
    except OSError as error:
        answer = f"error=the gateway does not answer: {error.strerror or error}"
    lines = answer.splitlines()
    if any(line.startswith("password=") for line in lines):
        sys.stdout.write("\n".join(lines) + "\n")
        return 0
    reason = lines[0].removeprefix("error=").removeprefix("unavailable ") if lines else "no answer"
    sys.stderr.write(f"trunkline: {reason}\n")
    sys.stdout.write("quit=1\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
