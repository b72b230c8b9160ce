"""A fake coding program: it speaks the protocol of one program and plays a scene.

``fake_program(folder, name, scene)`` writes an executable copy of this file, which needs nothing but Python.
As a program, ``python gateway/testing/fake_program.py … --fake-program claude-code echo`` speaks over its
pipes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

VERSION = "7.8.9 (fake)"
MARK = "--fake-program"
"""An argument; the program's name and the scene follow it, after all other arguments."""
TOOL, OUTPUT = {"command": "ls"}, "a.txt"
LINE = b"x" * 65_536


def write(data: bytes, fd: int = 1) -> None:
    """Write all bytes."""
    while data:
        data = data[os.write(fd, data) :]


def send_message(**message: Any) -> None:
    """Send a message."""
    write(json.dumps(message).encode() + b"\n")


def read_message() -> dict[str, Any]:
    """Return the next message. At the end of the input the program exits."""
    line = sys.stdin.readline()
    return json.loads(line) if line else sys.exit()


class Claude:
    """Claude Code's JSON stream."""

    def prompt(self) -> tuple[str, list[str]]:
        """Read the start of the session. Return the user's text and the types of the images."""
        read_message()
        content: Any = read_message()["message"]["content"]
        blocks: list[Any] = [{"type": "text", "text": content}] if isinstance(content, str) else content
        send_message(type="system", subtype="init", session_id="s-1")
        image_types = [block["source"]["media_type"] for block in blocks if block["type"] == "image"]
        return blocks[-1]["text"], image_types

    def say(self, text: str) -> None:
        """Send a piece of the answer."""
        self._delta({"type": "text_delta", "text": text})

    def think(self, text: str) -> None:
        """Send a piece of the reasoning."""
        self._delta({"type": "thinking_delta", "thinking": text})

    def call(self, key: str) -> None:
        """Report a tool call."""
        block = {"type": "tool_use", "id": key, "name": "Bash", "input": TOOL}
        send_message(type="assistant", message={"content": [block]})

    def ask(self, key: str) -> bool:
        """Request permission for the call and return whether it is given."""
        request = {"subtype": "can_use_tool", "tool_name": "Bash", "input": TOOL, "tool_use_id": key}
        send_message(type="control_request", request_id=key, request=request)
        return read_message()["response"]["response"]["behavior"] == "allow"

    def result(self, key: str, allowed: bool) -> None:
        """Report the result of the call."""
        block = {"type": "tool_result", "tool_use_id": key, "content": OUTPUT if allowed else "no"}
        send_message(type="user", message={"content": [{**block, "is_error": not allowed}]})

    def done(self) -> None:
        """Send the end and the usage."""
        usage = {"input_tokens": 6, "cache_read_input_tokens": 2, "output_tokens": 3}
        send_message(type="result", subtype="success", is_error=False, result="", num_turns=1, usage=usage)

    def fail(self, reason: str) -> None:
        """Report an error of the model service."""
        send_message(type="result", subtype="error", is_error=True, result=reason, num_turns=1)

    def _delta(self, delta: Mapping[str, str]) -> None:
        send_message(type="stream_event", event={"type": "content_block_delta", "delta": delta})


class Codex:
    """Codex's app server."""

    def prompt(self) -> tuple[str, list[str]]:
        """Answer the start of a thread. Return the user's text and the types of the images."""
        while True:
            request = read_message()
            match request["method"]:
                case "turn/start":
                    send_message(id=request["id"], result={"turn": {"id": "u"}})
                    blocks = request["params"]["input"]
                    image_types = [
                        each["url"][5:].split(";")[0] for each in blocks if each["type"] == "image"
                    ]
                    return blocks[-1]["text"], image_types
                case "thread/start" | "thread/resume":
                    send_message(id=request["id"], result={"thread": {"id": "s-1"}})
                case _ if "id" in request:
                    send_message(id=request["id"], result={})
                case _:
                    pass

    def say(self, text: str) -> None:
        """Send a piece of the answer."""
        self._notify("item/agentMessage/delta", itemId="m1", delta=text)

    def think(self, text: str) -> None:
        """Send a piece of the reasoning."""
        self._notify("item/reasoning/textDelta", itemId="r1", delta=text)

    def call(self, key: str) -> None:
        """Report a tool call."""
        self._item("started", key, status="inProgress")

    def ask(self, key: str) -> bool:
        """Request permission for the call and return whether it is given."""
        params = {"itemId": key, **TOOL, "cwd": "/", "reason": "to see"}
        send_message(id=key, method="item/commandExecution/requestApproval", params=params)
        return read_message()["result"]["decision"] == "accept"

    def result(self, key: str, allowed: bool) -> None:
        """Report the result of the call."""
        success = {"status": "completed", "aggregatedOutput": OUTPUT, "exitCode": 0}
        self._item("completed", key, **(success if allowed else {"status": "declined"}))

    def done(self) -> None:
        """Send the end and the usage."""
        usage = {"inputTokens": 8, "cachedInputTokens": 2, "outputTokens": 3}
        self._notify("thread/tokenUsage/updated", turnId="u", tokenUsage={"total": usage, "last": usage})
        self._notify("turn/completed", turn={"status": "completed", "error": None})

    def fail(self, reason: str) -> None:
        """Report an error of the model service."""
        self._notify("turn/completed", turn={"status": "failed", "error": {"message": reason}})

    def _notify(self, method: str, **params: Any) -> None:
        send_message(method=method, params=params)

    def _item(self, state: str, key: str, **fields: Any) -> None:
        item = {"type": "commandExecution", "id": key, **TOOL, "cwd": "/", **fields}
        self._notify(f"item/{state}", threadId="s-1", turnId="u", item=item)


class Acp:
    """The Agent Client Protocol."""

    _prompt: Any = 0

    def prompt(self) -> tuple[str, list[str]]:
        """Answer the start of a session. Return the user's text and the types of the images."""
        results: dict[str, Any] = {
            "initialize": {
                "protocolVersion": 1,
                "agentCapabilities": {"loadSession": True, "promptCapabilities": {"image": True}},
            },
            "session/new": {"sessionId": "s-1"},
        }
        while (request := read_message())["method"] != "session/prompt":
            send_message(jsonrpc="2.0", id=request["id"], result=results.get(request["method"], {}))
        self._prompt = request["id"]
        blocks = request["params"]["prompt"]
        image_types = [block["mimeType"] for block in blocks if block["type"] == "image"]
        return [block["text"] for block in blocks if block["type"] == "text"][-1], image_types

    def say(self, text: str) -> None:
        """Send a piece of the answer."""
        self._update("agent_message_chunk", content={"type": "text", "text": text})

    def think(self, text: str) -> None:
        """Send a piece of the reasoning."""
        self._update("agent_thought_chunk", content={"type": "text", "text": text})

    def call(self, key: str) -> None:
        """Report a tool call."""
        self._tool("tool_call", key, status="pending", rawInput={})
        self._tool("tool_call_update", key, status="in_progress", rawInput=TOOL)

    def ask(self, key: str) -> bool:
        """Request permission for the call and return whether it is given."""
        options = [{"optionId": kind, "kind": kind} for kind in ("allow_always", "allow_once", "reject_once")]
        call = {"toolCallId": key, "title": "ls", "kind": "execute", "rawInput": TOOL}
        params = {"sessionId": "s-1", "toolCall": call, "options": options}
        send_message(jsonrpc="2.0", id=key, method="session/request_permission", params=params)
        return read_message()["result"]["outcome"].get("optionId") == "allow_once"

    def result(self, key: str, allowed: bool) -> None:
        """Report the result of the call."""
        content = [{"type": "content", "content": {"type": "text", "text": OUTPUT}}]
        self._tool("tool_call_update", key, content=content, status="completed" if allowed else "failed")

    def done(self) -> None:
        """Send the end and the usage."""
        usage = {"inputTokens": 6, "cachedReadTokens": 2, "outputTokens": 3}
        send_message(jsonrpc="2.0", id=self._prompt, result={"stopReason": "end_turn", "usage": usage})

    def fail(self, reason: str) -> None:
        """Report an error of the model service."""
        send_message(jsonrpc="2.0", id=self._prompt, error={"code": 429, "message": reason})

    def _update(self, update_type: str, **fields: Any) -> None:
        params = {"sessionId": "s-1", "update": {"sessionUpdate": update_type, **fields}}
        send_message(jsonrpc="2.0", method="session/update", params=params)

    def _tool(self, update_type: str, key: str, **fields: Any) -> None:
        self._update(update_type, toolCallId=key, title="ls", kind="execute", **fields)


Protocol = Claude | Codex | Acp
PROTOCOLS: Mapping[str, Callable[[], Protocol]] = {
    "claude-code": Claude,
    "codex": Codex,
    "gemini": Acp,
    "opencode": Acp,
}


def _echo(protocol: Protocol) -> None:
    text, _ = protocol.prompt()
    protocol.say("You said: ")
    protocol.say(text.split()[-1])
    protocol.done()


def _repeat(protocol: Protocol) -> None:
    text, _ = protocol.prompt()
    protocol.say(text)
    protocol.done()


def _think(protocol: Protocol) -> None:
    protocol.prompt()
    protocol.think("Hm.")
    protocol.say("Yes.")
    protocol.done()


def _use(protocol: Protocol, keys: Iterable[str]) -> None:
    protocol.prompt()
    for key in keys:
        protocol.call(key)
    for key in keys:
        protocol.result(key, protocol.ask(key))
    protocol.say("Done.")
    protocol.done()


def _see(protocol: Protocol) -> None:
    _, image_types = protocol.prompt()
    protocol.say(f"I see {', '.join(image_types)}.")
    protocol.done()


def _fail(protocol: Protocol) -> None:
    protocol.prompt()
    protocol.fail("the usage limit is reached")


def _half(protocol: Protocol) -> None:
    protocol.prompt()
    protocol.say("Half")


def _die(protocol: Protocol) -> None:
    _half(protocol)
    write(b"fatal: out of memory\n", 2)
    sys.exit(3)


def _hang(protocol: Protocol) -> None:
    _half(protocol)
    time.sleep(3600)


def _stubborn(protocol: Protocol) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _hang(protocol)


def _banner(protocol: Protocol) -> None:
    write(b"Welcome! A new version is there.\n\n   \n\r\n\xff\xfe no UTF-8\n[1, 2]\n{half an object\n")
    write(b"\x1b[31mwarning: deprecated\x1b[0m \xff\n" * 3, 2)
    _echo(protocol)


def _pieces(protocol: Protocol) -> None:
    global write
    write_all = write

    def write_pieces(data: bytes, fd: int = 1) -> None:
        for at in range(0, len(data), 7):
            write_all(data[at : at + 7], fd)

    write = write_pieces
    _echo(protocol)


def _half_line(protocol: Protocol) -> None:
    _half(protocol)
    write(b'{"type": "result", "is_err')


def _oversize(protocol: Protocol) -> None:
    _half(protocol)
    while True:
        write(LINE)


def _chatter(protocol: Protocol) -> None:
    _half(protocol)
    while True:
        write(b"[" + LINE + b"]\n")


def _complaint(protocol: Protocol) -> None:
    _half(protocol)
    for _ in range(100 * 16):
        write(LINE, 2)
    protocol.done()


def _orphan(protocol: Protocol) -> None:
    _half(protocol)
    command = [sys.executable, "-c", "import time; time.sleep(3600)", sys.argv[0]]
    subprocess.Popen(command, start_new_session=True)  # noqa: S603 - this interpreter
    sys.exit(0)


def _question(protocol: Protocol) -> None:
    try:
        with Path("/dev/tty").open("rb+", buffering=0) as terminal:
            terminal.write(b"Continue? [y/N] ")
            terminal.read(1)
    except OSError:
        write(b"error: this needs a terminal\n", 2)
        sys.exit(1)


SCENES: Mapping[str, Callable[[Protocol], None]] = {
    "echo": _echo,
    "repeat": _repeat,
    "think": _think,
    "tool": lambda protocol: _use(protocol, ["c1"]),
    "tools": lambda protocol: _use(protocol, ["c1", "c2"]),
    "see": _see,
    "fail": _fail,
    "die": _die,
    "die at once": lambda protocol: sys.exit(2),
    "leave": _half,
    "hang": _hang,
    "stubborn": _stubborn,
    "banner": _banner,
    "crumbs": _pieces,
    "half a line": _half_line,
    "oversize": _oversize,
    "chatter": _chatter,
    "complaint": _complaint,
    "orphan": _orphan,
    "question": _question,
}
"""The scenes."""


def fake_program(folder: Path, name: str, scene: str) -> tuple[str, list[str]]:
    """Write an executable. Return its path, and the arguments that select program and scene."""
    path = folder / name
    if not path.exists():
        path.write_text(f"#!{sys.executable} -IS\n{Path(__file__).read_text()}")
        path.chmod(0o755)
    return str(path), [MARK, name, scene]


def main(arguments: list[str]) -> None:
    """Play a scene, or print the version."""
    if MARK not in arguments or "--version" in arguments:
        write(VERSION.encode() + b"\n")
        return
    name, scene = arguments[arguments.index(MARK) + 1 :]
    SCENES[scene](PROTOCOLS[name]())


if __name__ == "__main__":
    main(sys.argv[1:])
