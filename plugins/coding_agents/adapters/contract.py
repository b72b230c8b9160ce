"""Terms of all adapters: how to start a program, what its screen says, and with which keys to answer.

An adapter is data and pure functions; it does no I/O. It reads the rendered screen, and it is strict: what it
does not know word for word is ``unknown``, so that a new version of a program leads to no wrong key. The
cursor of every permission question is on Yes, therefore a key at the wrong moment is consent.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

from msgspec import Struct

from plugins.coding_agents.settings import Preset

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
LAST = "last"


class HookCommand(Struct, frozen=True):
    """The program that a hook runs, as arguments and as a line of a shell."""

    argv: tuple[str, ...]
    line: str


class AgentRequest(Struct, frozen=True, kw_only=True):
    """The input of a start. ``environ`` has those of the gateway's variables that the adapter declares.

    ``version`` is that of the installed program, "" if not known. ``key`` and ``base_url`` are for the model
    service; ``session_id`` is a UUID that the program may use for its session. ``resume`` is the id of one to
    continue, or ``LAST``: the last one of the folder, if the program did not report it. ``hook`` is what
    the program runs to report its events.
    """

    workdir: str
    home: str
    session_id: str = ""
    version: str = ""
    model: str = ""
    args: tuple[str, ...] = ()
    environ: Mapping[str, str] = {}
    key: str = ""
    base_url: str = ""
    preset: Preset = "standard"
    resume: str = ""
    hook: HookCommand | None = None


class Launch(Struct, frozen=True):
    """The way to start a program: arguments without the program itself, variables, and files below its home.

    ``settings`` are JSON files, merged into those that exist; ``files`` are replaced. A command of an earlier
    session may have written permissions, or programs to start, into the home: ``removed`` are files and
    folders that have such ones, and ``kept`` are the keys that stay in a file of ``settings``, all of them if
    it is not named.
    """

    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    settings: Mapping[str, Mapping[str, Any]] = {}
    files: Mapping[str, str] = {}
    removed: tuple[str, ...] = ()
    kept: Mapping[str, tuple[str, ...]] = {}


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


class Fact(Struct, frozen=True, omit_defaults=True):
    """A report of a program about itself, through a hook; empty fields say nothing.

    ``state`` is ``busy`` while it works, ``asks`` while it asks for a permission, ``done`` after its answer,
    which is ``output``. ``detail`` is the whole command or file of ``tool``, and ``note`` what the program
    shows below it. ``session`` is the program's own session, ``cost_usd`` what it has cost.
    """

    state: Literal["", "busy", "asks", "done"] = ""
    session: str = ""
    tool: str = ""
    detail: str = ""
    note: str = ""
    folder: str = ""
    output: str = ""
    cost_usd: float | None = None


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
    """Return nothing: the answer cannot be distinguished from the rest of the screen."""
    return ""


def unknown_login(home: str, environ: Mapping[str, str]) -> bool | None:
    """Return None: whether the user is logged in is not known without starting the program."""
    return None


def no_fact(report: Mapping[str, Any]) -> Fact | None:
    """Return nothing: the program has no hooks."""
    return None


class Adapter(Struct, frozen=True, kw_only=True):
    """A program: data, and pure functions over its screen.

    ``answer`` returns the text of the last answer on the screen; ``logged_in`` looks into the program's home;
    ``hook`` returns the fact in a report of the program's hooks, None if there is none.
    """

    name: str
    title: str
    binary: str
    install: str
    launch: Callable[[AgentRequest], Launch]
    read: Callable[[Lines, Cursor], Reading]
    answer: Callable[[Lines], str] = no_answer
    logged_in: Callable[[str, Mapping[str, str]], bool | None] = unknown_login
    hook: Callable[[Mapping[str, Any]], Fact | None] = no_fact
    aliases: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    key: str = ""
    """The variable of the API key."""
    url: str = ""
    """The variable of the address of the model service."""
    service: str = ""
    """The usual address of the model service, as that variable takes it."""
    configured_by: tuple[str, ...] = ()
    """Files of the working folder that could let it run commands without a question."""
    instructions: tuple[str, ...] = ()
    """Files of the working folder with instructions for it, which it does not load from there by itself."""
    hosts: tuple[str, ...] = ()
    """Hosts that it must reach for models and its login: ``host``, ``host:port`` or ``*.host``."""
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
    """First characters with which a text is not a message but a shell command; a space goes before them."""
    typed_keys: str = ""
    """Characters that may act as keys of the program within a typed text, which is pasted then."""
    resubmits: int = 2
    """Times that Enter is repeated while the input line still shows the text."""
    takes_session_id: bool = False
    """True if a start gives the program the id of its new session."""
    line_editor: bool = False
    """True if the program turns bracketed paste on while it is ready or asks, and off while it works."""
    program: str = ""
    """The program that must be installed, if ``binary`` only runs it."""
    command: str = ""
    """A shell command that gets each text as its argument."""
    auto_responses: tuple[AutoResponse, ...] = ()

    def format_input(self, text: str) -> str:
        """Return text that the program takes as a message: no control characters, no shell mode."""
        clean = _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n")).rstrip()
        if self.command and clean:
            return f"{self.command} {shlex.quote(clean)}"
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


def said(report: Mapping[str, Any], *names: str) -> str:
    """Return the first text with one of these names in a report, "" without one."""
    found = (value for name in names if isinstance(value := report.get(name), str) and value)
    return next(found, "")


def fields(report: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the object with this name in a report, an empty one without it."""
    found = report.get(name)
    return cast("Mapping[str, Any]", found) if isinstance(found, dict) else {}


def snippet(lines: Lines) -> str:
    """Return the end of the visible text without frames, with at most 280 characters."""
    return "\n".join(filter(None, (" ".join(_GLYPHS.sub(" ", line).split()) for line in lines)))[-280:]


class Menu(Struct, frozen=True):
    """A numbered menu at the end of a screen: the row of its first entry, and the texts of all entries."""

    start: int
    options: tuple[str, ...]


_MOST_WRAPPED = 4
_ENTRY = re.compile(r"^(\s*)(?P<glyph>\S )?(\s*)(?P<number>\d{1,2})\. (?P<text>.*\S)\s*$")


def menu_at_end(lines: Lines, cursor: Cursor | None, glyph: str, *, footer: str) -> Menu | None:
    """Return the menu that ends the screen, with nothing below it but a row that matches ``footer``.

    Output of a program cannot be there, because its input line is always below it. The entries are numbered
    from 1, long ones continue in the next row, exactly one has the cursor ``glyph``, and the terminal's
    cursor is in its row if one is given.
    """
    rows = [at for at, line in enumerate(lines) if line.strip()]
    if rows and re.fullmatch(footer, lines[rows[-1]].strip()):
        rows.pop()
    entries: list[re.Match[str]] = []
    options: list[str] = []
    marked: list[int] = []
    wrapped: list[str] = []
    start = -1
    for at in reversed(rows):
        match = _ENTRY.match(lines[at])
        if match is None and len(wrapped) < _MOST_WRAPPED:
            wrapped.insert(0, lines[at])
            continue
        # Rows that continue an entry are indented like its text.
        if not match or any(line[: match.start("text")].strip() for line in wrapped):
            break
        if (match["glyph"] or glyph).strip() != glyph:
            break
        entries.insert(0, match)
        options.insert(0, " ".join((match["text"], *map(str.strip, wrapped))))
        marked += [at] if match["glyph"] else []
        wrapped, start = [], at
        if match["number"] == "1":
            break
    if len(marked) != 1 or [int(entry["number"]) for entry in entries] != list(range(1, len(entries) + 1)):
        return None
    return Menu(start, tuple(options)) if cursor is None or cursor[0] == marked[0] else None
