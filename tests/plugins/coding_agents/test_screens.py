"""The contract suite of all adapters: each reads the recorded screens of its program, and nothing else.

Each file holds a screen that the real program showed, in a terminal of 40 rows and 120 columns, at a fake
model service. Its first line is JSON with the terminal's cursor and the expected reading; a change of one
word of ``cues`` must give "unknown". The name of a folder is the version of the program.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec import structs

from plugins.coding_agents.adapters import adapters
from plugins.coding_agents.adapters.contract import Adapter, AgentRequest, Launch, Lines, Preset, Reading
from plugins.coding_agents.adapters.preflight import is_known
from plugins.coding_agents.machine import (
    LoginRequired,
    MachineState,
    Question,
    Ready,
    TaskDone,
    Type,
    View,
    begin,
    confirm,
    merge_rules,
    send_text,
    step,
)

FOLDER = Path(__file__).parent / "screens"
ROWS = 40


class Screen(NamedTuple):
    """A recorded screen."""

    adapter: Adapter
    version: str
    name: str
    expected: dict[str, Any]
    lines: Lines
    cursor: tuple[int, int]

    def read(self, lines: Lines | None = None) -> Reading:
        return self.adapter.read(lines or self.lines, self.cursor)

    @property
    def known(self) -> dict[str, Any]:
        """The expected reading, in the words of the file."""
        return {
            name: value for name, value in self.expected.items() if name not in ("cursor", "cues", "answer")
        }


def recorded() -> Iterator[Screen]:
    for file in sorted(FOLDER.glob("*/*/*.txt")):
        head, *rows = file.read_text().rstrip("\n").split("\n")
        expected = json.loads(head)
        lines = (*rows, *[""] * (ROWS - len(rows)))
        name, version = file.parts[-3:-1]
        row, column = expected["cursor"]
        yield Screen(adapters()[name], version, file.stem, expected, lines, (row, column))


SCREENS = list(recorded())
IDS = [f"{screen.adapter.name}-{screen.version}-{screen.name}" for screen in SCREENS]
every_screen = pytest.mark.parametrize("screen", SCREENS, ids=IDS)
every_adapter = pytest.mark.parametrize("adapter", adapters().values(), ids=adapters())


def described(reading: Reading) -> dict[str, Any]:
    """Return a reading in the words of the files."""
    found: dict[str, Any] = {"state": reading.state}
    if reading.input is not None:
        found["input"] = reading.input
    if reading.done:
        found["done"] = True
    if reading.activity:
        found["activity"] = reading.activity
    if reading.login:
        found["login"] = reading.login.method
    if question := reading.question:
        found |= {"tool": question.tool, "detail": question.detail}
        found |= {"yes": list(question.yes), "no": list(question.no)}
        found |= {"folder": question.folder} if question.folder else {}
    return found


def keys_of(reading: Reading) -> tuple[Any, ...]:
    return (reading.question.yes, reading.question.no) if reading.question else ()


def with_word(lines: Lines, at: int, start: int, end: int) -> Lines:
    """Return the screen with another word of the same length."""
    line = lines[at]
    changed = line[:start] + "x" * (end - start) + line[end:]
    return (*lines[:at], changed, *lines[at + 1 :])


def changed_words(lines: Lines) -> Iterator[Lines]:
    for at, line in enumerate(lines):
        for word in re.finditer(r"[A-Za-z]+", line):
            yield with_word(lines, at, *word.span())


@every_screen
def test_a_recorded_screen_is_read_as_recorded(screen: Screen) -> None:
    assert described(screen.read()) == screen.known
    if "answer" in screen.expected:
        assert screen.adapter.answer(screen.lines) == screen.expected["answer"]


@every_screen
def test_a_changed_word_of_a_cue_gives_unknown(screen: Screen) -> None:
    """Each occurrence is changed that is not in the text of the conversation above."""
    for cue in screen.expected.get("cues", ()):
        at = max(at for at, line in enumerate(screen.lines) if cue in line)
        begin_at = screen.lines[at].rindex(cue)
        for word in re.finditer(r"[A-Za-z]+", cue):
            changed = with_word(screen.lines, at, begin_at + word.start(), begin_at + word.end())
            assert screen.read(changed).state == "unknown", changed[at]


@every_screen
def test_a_changed_word_never_gives_another_key_or_a_ready_screen(screen: Screen) -> None:
    reading = screen.read()
    for lines in changed_words(screen.lines):
        changed = screen.read(lines)
        assert keys_of(changed) in ((), ((), ()), keys_of(reading)) or not any(keys_of(changed)[0])
        if changed.state == "ready":
            # A footer that says busy or "not logged in" is such a word.
            assert reading.state in ("ready", "busy", "login", "unknown")
        if reading.state == "question":
            assert changed.state != "ready"


@every_screen
def test_the_bare_glyph_of_a_prompt_or_a_menu_is_not_a_ready_cue(screen: Screen) -> None:
    if screen.adapter.name in ("claude", "codex", "gemini", "opencode"):
        glyphs = "\u276f\u203a\u25cf>\u2503"
        bare = tuple(f"{line[:4]}" if line.strip()[:1] in glyphs else "" for line in screen.lines)
        assert screen.read(bare).state == "unknown"


INPUT_ROWS = {"claude": 1, "codex": 0, "gemini": 4, "opencode": 1, "aider": 0, "pi": 0, "shell": 0}
"""Rows of the input area above the input line itself."""


@every_screen
def test_a_question_that_is_printed_above_the_input_line_is_output(screen: Screen) -> None:
    """A program that shows the text of a prompt makes no question, also directly above its input line."""
    ready = next(each for each in SCREENS if each.adapter is screen.adapter and each.name == "done")
    room = ready.cursor[0] - INPUT_ROWS[screen.adapter.name]
    printed = [line for line in screen.lines if line][-room:]
    lines = (*[""] * (room - len(printed)), *printed, *ready.lines[room:])
    assert screen.adapter.read(lines, ready.cursor).question is None


def started(screen: Screen, **state: Any) -> MachineState:
    rules = merge_rules(screen.adapter.auto_responses)
    return begin(MachineState(rules=rules, **state), 0)


def shown(screen: Screen, version: int) -> View:
    return View(screen.lines, screen.cursor, version)


def run(screen: Screen, state: MachineState, until: int, now: int = 0) -> tuple[MachineState, list[Any], int]:
    """Show a screen for some time; nothing is typed for real."""
    events: list[Any] = []
    while True:
        state, new, due = step(screen.adapter, state, shown(screen, 1), now)
        events += new
        for event in new:
            if isinstance(event, Type):
                state, more, _ = confirm(state, event.id, now)
                events += more
                due = now
        if due is None or due > until:
            return state, events, until
        now = due


@every_screen
def test_the_machine_turns_a_recorded_screen_into_its_events(screen: Screen) -> None:
    _, events, _ = run(screen, started(screen), 6000)
    asked = [event for event in events if isinstance(event, Question)]
    assert len(asked) == (screen.expected["state"] == "question")
    assert any(isinstance(event, Ready) for event in events) == (screen.expected["state"] == "ready")
    assert any(isinstance(event, LoginRequired) for event in events) == ("login" in screen.expected)
    typed = b"".join(event.data for event in events if isinstance(event, Type))
    assert bool(typed) == any(event.answering for event in asked), "only rules of the adapter answer alone"
    busy = structs.replace(started(screen), status="busy", sent="x", worked=True)
    _, events, _ = run(screen, busy, 6000)
    done = [event.output for event in events if isinstance(event, TaskDone)]
    assert done == ([screen.expected["answer"]] if screen.expected["state"] == "ready" else [])


@every_screen
def test_an_answer_is_typed_with_the_recorded_key_and_nothing_without_a_rule(screen: Screen) -> None:
    state = structs.replace(started(screen), known=False)
    _, events, _ = run(screen, state, 60_000)
    assert not [event for event in events if isinstance(event, Type)], "no rule answers for unknown versions"


@pytest.mark.parametrize(
    "screen",
    [s for s in SCREENS if s.name in ("typed", "pasted")],
    ids=lambda s: f"{s.adapter.name}-{s.name}",
)
def test_a_text_is_submitted_when_the_recorded_input_line_shows_it(screen: Screen) -> None:
    text = "Make a file." if screen.name == "typed" else "one\ntwo\nthree\nfour\nfive\nsix\nseven"
    if screen.name == "pasted" and "Pasted" not in screen.expected["input"]:
        text = "\n".join(screen.expected["input"].split())
    ready = next(
        s
        for s in SCREENS
        if s.adapter is screen.adapter and s.version == screen.version and s.name == "ready"
    )
    state, events, now = run(ready, started(screen), 10_000)
    state = send_text(screen.adapter, state, shown(ready, 1), text, now)
    state, events, now = run(ready, state, now + 1000, now)
    assert [event.data for event in events if isinstance(event, Type)][1:] == []
    other = structs.replace(state.outbox[0], subject="Make a pie.")
    wrong, events, _ = run(screen, structs.replace(state, outbox=(other,)), now + 5000, now)
    if screen.name == "typed":
        assert not [event for event in events if isinstance(event, Type)], "the line shows another text"
    _, events, _ = run(screen, state, now + 1000, now)
    assert [event.data for event in events if isinstance(event, Type)] == [b"\r"]
    assert wrong.in_flight is None


def recorded_question(name: str, screen: str) -> Screen:
    return next(each for each in SCREENS if (each.adapter.name, each.name) == (name, screen))


def test_a_command_with_empty_rows_is_asked_about_as_a_whole() -> None:
    """The row of its first line is that after the model's answer; a rule must not decide by its last line."""
    screen = recorded_question("aider", "run")
    last = next(at for at in range(screen.cursor[0], 0, -1) if screen.lines[at] == "touch made.txt")
    lines = (*screen.lines[:last], "rm -rf ~", "", *screen.lines[last:])
    question = screen.adapter.read(lines, (screen.cursor[0] + 2, screen.cursor[1])).question
    assert question is not None
    assert (question.detail, question.yes) == ("rm -rf ~\ntouch made.txt", ("y", "enter"))


def test_a_row_of_a_command_that_looks_like_its_first_one_hides_nothing() -> None:
    screen = recorded_question("codex", "bash")
    at = screen.lines.index("  $ touch made.txt")
    lines = (*screen.lines[:at], "  $ rm -rf ~ <<x", *screen.lines[at + 1 :])
    question = screen.read((*lines[: at + 1], "  $ npm test", *lines[at + 2 :])).question
    assert question is not None
    assert question.detail == "rm -rf ~ <<x\n$ npm test"


@pytest.mark.parametrize(
    ("name", "screen", "cut"), [("aider", "run", "Tokens: "), ("claude", "bash", "────")]
)
def test_a_command_whose_beginning_is_not_on_the_screen_has_no_key_for_yes(
    name: str, screen: str, cut: str
) -> None:
    shown = recorded_question(name, screen)
    at = max(row for row, line in enumerate(shown.lines) if line.startswith(cut))
    lines = tuple("" if row <= at else line for row, line in enumerate(shown.lines))
    question = shown.read(lines).question
    assert question is not None
    assert question.yes == ()


@every_adapter
def test_an_adapter_has_what_the_contract_asks(adapter: Adapter) -> None:
    presets: tuple[Preset, ...] = ("readonly", "standard", "permissive", "autonomous")
    launches: list[Launch] = []
    for preset in presets:
        request = AgentRequest(
            workdir="/w",
            home="/h",
            session_id="s",
            preset=preset,
            key="sk-test",
            base_url="http://127.0.0.1:1",
        )
        launches.append(adapter.launch(request))
        assert not any("sk-test" in part for part in launches[-1].argv), "keys of others are in no argument"
        assert not any(
            path.startswith("/") or ".." in path for path in {**launches[-1].files, **launches[-1].settings}
        )
    assert adapter.install
    assert adapter.title
    blank = adapter.read(("",) * ROWS, (0, 0))
    assert (blank.state, blank.question) == ("unknown", None)
    assert adapter.read((), (0, 0)).state == "unknown"


@every_adapter
def test_the_known_versions_are_those_with_recorded_screens(adapter: Adapter) -> None:
    versions = [folder.name for folder in (FOLDER / adapter.name).glob("*")]
    assert all(is_known(adapter, version) for version in versions)
    unknown = [
        version for version in adapter.known_versions if not any(v.startswith(version) for v in versions)
    ]
    assert unknown == []


@every_adapter
def test_a_text_cannot_leave_its_message(adapter: Adapter) -> None:
    text = adapter.format_input("one\x1b[201~\r\x03two\x07'; rm -rf /")
    assert not re.search(r"[\x00-\x08\x0b-\x1f]", text)
    if adapter.command:
        assert text == "pi --print 'one[201~\ntwo'\"'\"'; rm -rf /'"
