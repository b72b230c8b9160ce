"""Terms of all adapters: how to start a program, what its screen says, and with which keys to answer.

An adapter is data and pure functions; it does no I/O. It reads the rendered screen, and it is strict: what it
does not know word for word is ``unknown``, so that a new version of a program leads to no wrong key. The
cursor of every permission question is on Yes, therefore a key at the wrong moment is consent.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from msgspec import Struct

Lines = tuple[str, ...]
"""The rows of a rendered screen, top to bottom, without spaces at their ends."""
Cursor = tuple[int, int]
"""Row and column."""
Keys = tuple[str, ...]
"""Names of keys, see ``keys.py``."""
BlockingType = (
    Literal["login", "update", "config", "tos", "model_select", "project_select"]
    | Literal["permission", "tool_wait", "unknown"]
)
ScreenState = Literal["unknown", "ready", "busy", "question", "login", "exit"]
Preset = Literal["readonly", "standard", "permissive", "autonomous"]


class AgentRequest(Struct, frozen=True, kw_only=True):
    """The input of a start. ``environ`` has those of the gateway's variables that the adapter declares.

    ``key`` and ``base_url`` are for the model service; ``resume`` is the program's session to continue.
    ``hook_url`` and ``hook_secret`` reach the gateway's side channel, if there is one.
    """

    workdir: str
    home: str
    session_id: str = ""
    model: str = ""
    args: tuple[str, ...] = ()
    environ: Mapping[str, str] = {}
    key: str = ""
    base_url: str = ""
    preset: Preset = "standard"
    resume: str = ""
    hook_url: str = ""
    hook_secret: str = ""


class Launch(Struct, frozen=True):
    """The way to start a program: arguments without the program itself, variables, and files below its home.

    ``settings`` are JSON files, merged into those that exist; ``files`` are replaced.
    """

    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    settings: Mapping[str, Mapping[str, Any]] = {}
    files: Mapping[str, str] = {}


class ScreenQuestion(Struct, frozen=True):
    """A question on the screen. ``yes`` and ``no`` are its own keys, never Enter in a menu; empty if unknown.

    ``detail`` is the command or file, ``digest`` identifies the question: type and normalised text.
    """

    type: BlockingType
    prompt: str
    digest: str
    tool: str = ""
    detail: str = ""
    folder: str = ""
    options: tuple[str, ...] = ()
    yes: Keys = ()
    no: Keys = ()


class LoginPrompt(Struct, frozen=True):
    """A login that the program asks for. ``snippet`` has at most 280 characters of the screen."""

    method: Literal["api_key", "cli_auth", "oauth_browser", "device_code", "unknown"]
    instructions: str
    url: str = ""
    device_code: str = ""
    snippet: str = ""


class Reading(Struct, frozen=True):
    """The meaning of a screen. ``ready`` means: the input line is there and empty, and no question is.

    ``input`` is the text in the input line, None without one; ``activity`` is the running step; ``done`` is
    true if the screen itself says that the work is finished.
    """

    state: ScreenState = "unknown"
    question: ScreenQuestion | None = None
    login: LoginPrompt | None = None
    input: str | None = None
    activity: str = ""
    done: bool = False


class AutoResponse(Struct, frozen=True, kw_only=True):
    """An answer that needs no user. ``pattern`` is a regular expression for the question's prompt.

    With ``safe = False`` the user is notified, and nothing is typed. ``once`` limits it to one answer for
    each session.
    """

    pattern: str
    type: BlockingType = "unknown"
    response: str = ""
    keys: Keys = ()
    description: str = ""
    safe: bool = True
    once: bool = False


def no_answer(lines: Lines) -> str:
    """Return nothing: the screen does not tell the program's answer from the rest."""
    return ""


def no_resume(session: str) -> tuple[str, ...]:
    """Return no arguments: the program cannot continue a session."""
    return ()


def unknown_login(home: str, environ: Mapping[str, str]) -> bool | None:
    """Return None: whether the user is logged in is not known without starting the program."""
    return None


class Adapter(Struct, frozen=True, kw_only=True):
    """A program: data, and pure functions over its screen.

    ``answer`` returns the text of the last answer; ``resume`` the arguments that continue a session; and
    ``logged_in`` looks into the program's home.
    """

    name: str
    title: str
    binary: str
    install: str
    launch: Callable[[AgentRequest], Launch]
    read: Callable[[Lines, Cursor], Reading]
    answer: Callable[[Lines], str] = no_answer
    resume: Callable[[str], tuple[str, ...]] = no_resume
    logged_in: Callable[[str, Mapping[str, str]], bool | None] = unknown_login
    aliases: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    key: str = ""
    """The variable of the API key."""
    docs: str = ""
    memory_file: str = ""
    """The file in the working folder that the program reads as instructions."""
    min_node: int = 0
    node_limits: Mapping[int, str] = {}
    """Major version of Node.js → the newest release of the program that it can run."""
    known_versions: tuple[str, ...] = ()
    """Versions whose screens are recorded. Others work, but nothing is answered without a user."""
    settle_ms: int = 100
    """Milliseconds for which a ready screen must stay ready."""
    task_delay_ms: int = 0
    """Milliseconds between ready and the first text."""
    pasted: str = ""
    """A regular expression for what the input line shows instead of a long text."""
    shields: str = ""
    """First characters with which a text is no message but a shell command; a space goes before them."""
    resubmits: int = 2
    """Times that Enter is repeated while the input line still shows the text."""
    auto_responses: tuple[AutoResponse, ...] = ()

    def format_input(self, text: str) -> str:
        """Return text that the program takes as a message: no control characters, no shell mode."""
        clean = _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n")).rstrip()
        return f" {clean}" if clean and clean[0] in self.shields else clean


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_GLYPHS = re.compile("[\u276f\u203a●○◉◯▌▎│┃╭╮╰╯─━┌┐└┘├┤]")
_DURATION = re.compile(r"\b\d+(?:\.\d+)?\s?(?:ms|s|m|h)\b")


def normalise(text: str) -> str:
    """Return text without frames, cursor glyphs, durations and repeated spaces."""
    return " ".join(_DURATION.sub("#s", _GLYPHS.sub(" ", text)).split())


def digest_of(kind: BlockingType, text: str) -> str:
    """Return the hash that identifies a question."""
    return hashlib.sha256(f"{kind}\n{normalise(text)}".encode()).hexdigest()[:32]


def squeeze(text: str) -> str:
    """Return text without any white space, to compare it across line wraps and indentation."""
    return "".join(text.split())


def snippet(lines: Lines, most: int = 280) -> str:
    """Return the end of the visible text, with at most ``most`` characters."""
    return "\n".join(line.strip() for line in lines if line.strip())[-most:]
