"""A program that stands in for a coding program: it speaks the protocol of one, and does as it is told.

``fake_program(folder, name, scene)`` makes an executable of this file, which needs nothing but Python. Alone:
``python gateway/testing/standin.py … --standin claude-code echo`` talks on its pipes.
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

VERSION = "7.8.9 (stand-in)"
MARK = "--standin"
"""Behind it, and behind all other arguments, stand the program's name and the scene."""
TOOL, OUTPUT = {"command": "ls"}, "a.txt"
LINE = b"x" * 65_536


def write(data: bytes, fd: int = 1) -> None:
    """Write all of it."""
    while data:
        data = data[os.write(fd, data) :]


def out(**message: Any) -> None:
    """One message."""
    write(json.dumps(message).encode() + b"\n")


def heard() -> dict[str, Any]:
    """The next message. At the end of the input the program ends."""
    line = sys.stdin.readline()
    return json.loads(line) if line else sys.exit()


class Claude:
    """The stream of JSON."""

    def prompt(self) -> tuple[str, list[str]]:
        """What the user wants, and the kinds of the pictures with it."""
        heard()
        content: Any = heard()["message"]["content"]
        blocks: list[Any] = [{"type": "text", "text": content}] if isinstance(content, str) else content
        out(type="system", subtype="init", session_id="s-1")
        pictures = [block["source"]["media_type"] for block in blocks if block["type"] == "image"]
        return blocks[-1]["text"], pictures

    def say(self, text: str) -> None:
        """More of the answer."""
        self._delta({"type": "text_delta", "text": text})

    def think(self, text: str) -> None:
        """More of the reasoning."""
        self._delta({"type": "thinking_delta", "thinking": text})

    def call(self, key: str) -> None:
        """A tool is used."""
        block = {"type": "tool_use", "id": key, "name": "Bash", "input": TOOL}
        out(type="assistant", message={"content": [block]})

    def ask(self, key: str) -> bool:
        """Whether it may be."""
        asked = {"subtype": "can_use_tool", "tool_name": "Bash", "input": TOOL, "tool_use_id": key}
        out(type="control_request", request_id=key, request=asked)
        return heard()["response"]["response"]["behavior"] == "allow"

    def returned(self, key: str, allowed: bool) -> None:
        """What came of it."""
        block = {"type": "tool_result", "tool_use_id": key, "content": OUTPUT if allowed else "no"}
        out(type="user", message={"content": [{**block, "is_error": not allowed}]})

    def done(self) -> None:
        """The end, with the tokens."""
        used = {"input_tokens": 6, "cache_read_input_tokens": 2, "output_tokens": 3}
        out(type="result", subtype="success", is_error=False, result="", num_turns=1, usage=used)

    def fail(self, reason: str) -> None:
        """The model service refused."""
        out(type="result", subtype="error", is_error=True, result=reason, num_turns=1)

    def _delta(self, delta: Mapping[str, str]) -> None:
        out(type="stream_event", event={"type": "content_block_delta", "delta": delta})


class Codex:
    """The app server."""

    def prompt(self) -> tuple[str, list[str]]:
        """A handshake, a thread, and what the user wants."""
        while True:
            asked = heard()
            match asked["method"]:
                case "turn/start":
                    out(id=asked["id"], result={"turn": {"id": "u"}})
                    given = asked["params"]["input"]
                    pictures = [each["url"][5:].split(";")[0] for each in given if each["type"] == "image"]
                    return given[-1]["text"], pictures
                case "thread/start" | "thread/resume":
                    out(id=asked["id"], result={"thread": {"id": "s-1"}})
                case _ if "id" in asked:
                    out(id=asked["id"], result={})
                case _:
                    pass

    def say(self, text: str) -> None:
        """More of the answer."""
        self._told("item/agentMessage/delta", itemId="m1", delta=text)

    def think(self, text: str) -> None:
        """More of the reasoning."""
        self._told("item/reasoning/textDelta", itemId="r1", delta=text)

    def call(self, key: str) -> None:
        """A command is run."""
        self._item("started", key, status="inProgress")

    def ask(self, key: str) -> bool:
        """Whether it may be."""
        params = {"itemId": key, **TOOL, "cwd": "/", "reason": "to see"}
        out(id=key, method="item/commandExecution/requestApproval", params=params)
        return heard()["result"]["decision"] == "accept"

    def returned(self, key: str, allowed: bool) -> None:
        """What came of it."""
        ended = {"status": "completed", "aggregatedOutput": OUTPUT, "exitCode": 0}
        self._item("completed", key, **(ended if allowed else {"status": "declined"}))

    def done(self) -> None:
        """The end, with the tokens."""
        used = {"inputTokens": 8, "cachedInputTokens": 2, "outputTokens": 3}
        self._told("thread/tokenUsage/updated", tokenUsage={"total": used, "last": used})
        self._told("turn/completed", turn={"status": "completed", "error": None})

    def fail(self, reason: str) -> None:
        """The model service refused."""
        self._told("turn/completed", turn={"status": "failed", "error": {"message": reason}})

    def _told(self, method: str, **params: Any) -> None:
        out(method=method, params=params)

    def _item(self, state: str, key: str, **fields: Any) -> None:
        item = {"type": "commandExecution", "id": key, **TOOL, "cwd": "/", **fields}
        self._told(f"item/{state}", threadId="s-1", turnId="u", item=item)


class Acp:
    """The Agent Client Protocol."""

    _prompt: Any = 0

    def prompt(self) -> tuple[str, list[str]]:
        """A handshake, a session, and what the user wants."""
        results: dict[str, Any] = {
            "initialize": {
                "protocolVersion": 1,
                "agentCapabilities": {"loadSession": True, "promptCapabilities": {"image": True}},
            },
            "session/new": {"sessionId": "s-1"},
        }
        while (asked := heard())["method"] != "session/prompt":
            out(jsonrpc="2.0", id=asked["id"], result=results.get(asked["method"], {}))
        self._prompt = asked["id"]
        blocks = asked["params"]["prompt"]
        pictures = [block["mimeType"] for block in blocks if block["type"] == "image"]
        return [block["text"] for block in blocks if block["type"] == "text"][-1], pictures

    def say(self, text: str) -> None:
        """More of the answer."""
        self._update("agent_message_chunk", content={"type": "text", "text": text})

    def think(self, text: str) -> None:
        """More of the reasoning."""
        self._update("agent_thought_chunk", content={"type": "text", "text": text})

    def call(self, key: str) -> None:
        """A tool is used."""
        self._tool("tool_call", key, status="pending", rawInput={})
        self._tool("tool_call_update", key, status="in_progress", rawInput=TOOL)

    def ask(self, key: str) -> bool:
        """Whether it may be."""
        options = [{"optionId": kind, "kind": kind} for kind in ("allow_always", "allow_once", "reject_once")]
        call = {"toolCallId": key, "title": "ls", "kind": "execute", "rawInput": TOOL}
        params = {"sessionId": "s-1", "toolCall": call, "options": options}
        out(jsonrpc="2.0", id=key, method="session/request_permission", params=params)
        return heard()["result"]["outcome"].get("optionId") == "allow_once"

    def returned(self, key: str, allowed: bool) -> None:
        """What came of it."""
        content = [{"type": "content", "content": {"type": "text", "text": OUTPUT}}]
        self._tool("tool_call_update", key, content=content, status="completed" if allowed else "failed")

    def done(self) -> None:
        """The end, with the tokens."""
        used = {"inputTokens": 8, "cachedReadTokens": 2, "outputTokens": 3}
        out(jsonrpc="2.0", id=self._prompt, result={"stopReason": "end_turn", "usage": used})

    def fail(self, reason: str) -> None:
        """The model service refused."""
        out(jsonrpc="2.0", id=self._prompt, error={"code": 429, "message": reason})

    def _update(self, what: str, **fields: Any) -> None:
        params = {"sessionId": "s-1", "update": {"sessionUpdate": what, **fields}}
        out(jsonrpc="2.0", method="session/update", params=params)

    def _tool(self, what: str, key: str, **fields: Any) -> None:
        self._update(what, toolCallId=key, title="ls", kind="execute", **fields)


Spoken = Claude | Codex | Acp
SPOKEN: Mapping[str, Callable[[], Spoken]] = {
    "claude-code": Claude,
    "codex": Codex,
    "gemini": Acp,
    "opencode": Acp,
}


def _echo(spoken: Spoken) -> None:
    text, _ = spoken.prompt()
    spoken.say("You said: ")
    spoken.say(text.split()[-1])
    spoken.done()


def _repeat(spoken: Spoken) -> None:
    text, _ = spoken.prompt()
    spoken.say(text)
    spoken.done()


def _think(spoken: Spoken) -> None:
    spoken.prompt()
    spoken.think("Hm.")
    spoken.say("Yes.")
    spoken.done()


def _use(spoken: Spoken, keys: Iterable[str]) -> None:
    spoken.prompt()
    for key in keys:
        spoken.call(key)
    for key in keys:
        spoken.returned(key, spoken.ask(key))
    spoken.say("Done.")
    spoken.done()


def _see(spoken: Spoken) -> None:
    _, pictures = spoken.prompt()
    spoken.say(f"I see {', '.join(pictures)}.")
    spoken.done()


def _fail(spoken: Spoken) -> None:
    spoken.prompt()
    spoken.fail("the usage limit is reached")


def _half(spoken: Spoken) -> None:
    spoken.prompt()
    spoken.say("Half")


def _die(spoken: Spoken) -> None:
    _half(spoken)
    write(b"fatal: out of memory\n", 2)
    sys.exit(3)


def _hang(spoken: Spoken) -> None:
    _half(spoken)
    time.sleep(3600)


def _stubborn(spoken: Spoken) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _hang(spoken)


def _banner(spoken: Spoken) -> None:
    write(b"Welcome! A new version is there.\n\n   \n\r\n\xff\xfe no UTF-8\n[1, 2]\n{half an object\n")
    write(b"\x1b[31mwarning: deprecated\x1b[0m \xff\n" * 3, 2)
    _echo(spoken)


def _crumbs(spoken: Spoken) -> None:
    global write
    whole = write

    def in_crumbs(data: bytes, fd: int = 1) -> None:
        for at in range(0, len(data), 7):
            whole(data[at : at + 7], fd)

    write = in_crumbs
    _echo(spoken)


def _half_line(spoken: Spoken) -> None:
    _half(spoken)
    write(b'{"type": "result", "is_err')


def _oversize(spoken: Spoken) -> None:
    _half(spoken)
    while True:
        write(LINE)


def _chatter(spoken: Spoken) -> None:
    _half(spoken)
    while True:
        write(b"[" + LINE + b"]\n")


def _complaint(spoken: Spoken) -> None:
    _half(spoken)
    for _ in range(100 * 16):
        write(LINE, 2)
    spoken.done()


def _orphan(spoken: Spoken) -> None:
    _half(spoken)
    command = [sys.executable, "-c", "import time; time.sleep(3600)", sys.argv[0]]
    subprocess.Popen(command, start_new_session=True)  # noqa: S603 - ourselves
    sys.exit(0)


def _question(spoken: Spoken) -> None:
    try:
        with Path("/dev/tty").open("rb+", buffering=0) as terminal:
            terminal.write(b"Continue? [y/N] ")
            terminal.read(1)
    except OSError:
        write(b"error: this needs a terminal\n", 2)
        sys.exit(1)


SCENES: Mapping[str, Callable[[Spoken], None]] = {
    "echo": _echo,
    "repeat": _repeat,
    "think": _think,
    "tool": lambda spoken: _use(spoken, ["c1"]),
    "tools": lambda spoken: _use(spoken, ["c1", "c2"]),
    "see": _see,
    "fail": _fail,
    "die": _die,
    "die at once": lambda spoken: sys.exit(2),
    "leave": _half,
    "hang": _hang,
    "stubborn": _stubborn,
    "banner": _banner,
    "crumbs": _crumbs,
    "half a line": _half_line,
    "oversize": _oversize,
    "chatter": _chatter,
    "complaint": _complaint,
    "orphan": _orphan,
    "question": _question,
}
"""What it can be told to do."""


def fake_program(folder: Path, name: str, scene: str) -> tuple[str, list[str]]:
    """The path of an executable, and the arguments that go behind those of the program it stands in for."""
    path = folder / name
    if not path.exists():
        path.write_text(f"#!{sys.executable} -IS\n{Path(__file__).read_text()}")
        path.chmod(0o755)
    return str(path), [MARK, name, scene]


def main(arguments: list[str]) -> None:
    """Play a scene on the pipes, or tell a version."""
    if MARK not in arguments or "--version" in arguments:
        write(VERSION.encode() + b"\n")
        return
    name, scene = arguments[arguments.index(MARK) + 1 :]
    SCENES[scene](SPOKEN[name]())


if __name__ == "__main__":
    main(sys.argv[1:])
