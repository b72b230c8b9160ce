"""``trunkline chat`` at a pseudo-terminal, against a real gateway."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.gateway.cli.processes import RunningGateway, Terminal, gateway, trunkline

OPEN = "Ctrl-D leaves"
PROMPT = r">\x1b\[0m"
ANSWERED = rf"tokens[^>]*{PROMPT}"

Chat = Callable[..., Terminal]


@pytest.fixture
def chat(running: RunningGateway, home: Path) -> Iterator[Chat]:
    """Opens a chat, with a session or without."""
    opened: list[Terminal] = []

    def open_chat(*args: str) -> Terminal:
        terminal = Terminal(home, "chat", "--url", running.url, *args)
        opened.append(terminal)
        terminal.expect(OPEN)
        terminal.expect(PROMPT)
        return terminal

    yield open_chat
    for terminal in opened:
        terminal.close()


def test_an_answer_streams_as_markdown_with_each_line_once(chat: Chat) -> None:
    terminal = chat()
    terminal.type("hello\n")
    came = terminal.expect(ANSWERED)
    assert "\x1b[1mthe time\x1b[0m" in came, "bold is bold"
    assert [line for line in terminal.lines if line and not line.startswith((">", "demo/demo"))] == [
        "▌ hello",
        "I am the built-in demo; no model is connected. I can still show how an answer looks here:",
        " • the time: ask what time is it in Europe/Oslo?",
        " • arithmetic: ask what is 12 * (3 + 4)?",
        " • a slow tool with progress: ask count slowly to 5",
        " def greet(name: str) -> str:",
        '     return f"Hello, {name}!"',
        "To talk to a real model, run trunkline setup, or set OPENAI_API_KEY or ANTHROPIC_API_KEY, and start",
        "again.",
    ]


def test_a_tool_shows_progress_status_and_duration(chat: Chat) -> None:
    terminal = chat()
    terminal.type("count slowly to 2\n")
    terminal.expect("…[^✓]*counting[^✓]*1 of 2")
    terminal.expect(ANSWERED)
    tool = next(line for line in terminal.lines if "counting" in line)
    assert tool.startswith("✓ counting  2  1.")
    assert "  Counted to 2." in terminal.lines


def test_ctrl_c_stops_the_answer_and_the_chat_continues(chat: Chat) -> None:
    terminal = chat()
    terminal.type("count slowly to 20\n")
    terminal.expect("1 of 20")
    terminal.type("\x03")
    terminal.expect(f"stopped[^>]*{PROMPT}")
    terminal.type("/usage\n")
    terminal.expect("this conversation")


def test_ctrl_c_twice_leaves(chat: Chat) -> None:
    terminal = chat()
    for hint in (f"Ctrl-C again[^>]*{PROMPT}", "Continue with"):
        terminal.type("never mind")
        terminal.expect("never mind")
        terminal.interrupt(hint)
    assert terminal.wait() == 0


@pytest.mark.parametrize("farewell", ["\x04", "/exit\n"])
def test_leaving_the_chat_prints_how_to_continue_it(chat: Chat, farewell: str) -> None:
    terminal = chat("notes")
    terminal.type(farewell)
    terminal.expect("Continue with: trunkline chat notes")
    assert terminal.wait() == 0


@pytest.mark.parametrize(
    ("said", "shown"),
    [("y", r"✓[^\n]*calculating"), ("n", r"✗[^\n]*calculating"), ("what?\na", r"✓[^\n]*calculating")],
)
def test_a_tool_that_may_not_run_by_itself_is_asked_for(chat: Chat, said: str, shown: str) -> None:
    terminal = chat()
    terminal.type("what is 12 * 34?\n")
    terminal.expect(r"May calculator run\?[^\n]*12 \* 34")
    terminal.expect(r"lways \(.*\):")
    terminal.type(f"{said}\n")
    terminal.expect(shown)
    terminal.expect(ANSWERED)


def test_a_question_shows_characters_that_cannot_be_seen(chat: Chat) -> None:
    terminal = chat()
    terminal.type("what is 12 *\u200334?\n")
    terminal.expect(r"May calculator run\?[^\n]*12 \*\\u200334")
    terminal.expect(r"lways \(.*\):|\[n\]o:")
    terminal.type("y\n")
    terminal.expect(ANSWERED)


def test_always_is_not_asked_again(chat: Chat) -> None:
    terminal = chat()
    terminal.type("what is 2 * 3?\n")
    terminal.expect(r"lways \(.*\):")
    terminal.type("a\n")
    terminal.expect(ANSWERED)
    terminal.type("what is 2 * 3?\n")
    assert "May calculator run" not in terminal.expect(ANSWERED)


def test_a_line_that_ends_with_a_backslash_continues(chat: Chat, running: RunningGateway, home: Path) -> None:
    terminal = chat("lines")
    terminal.type("first\\\n")
    terminal.expect(r"\.\x1b\[0m")
    terminal.type("second\n")
    terminal.expect(ANSWERED)
    shown = trunkline("sessions", "show", "lines", home=home)
    assert "> first\nsecond" in shown.stdout


def test_the_tab_key_completes_commands(chat: Chat) -> None:
    terminal = chat()
    terminal.type("/usa")
    terminal.expect("Show tokens, cost and budgets")
    terminal.type("\t")
    terminal.expect_shown("> /usage")
    terminal.type("\n")
    terminal.expect("this conversation")


def test_a_session_is_taken_up_with_what_was_said(chat: Chat, running: RunningGateway, home: Path) -> None:
    trunkline("send", "remember the milk", "--session", "milk", "--url", running.url, home=home)
    terminal = chat("--session", "milk")
    said = "\n".join(terminal.lines)
    assert said.index("remember the milk") < said.index("I am the built-in demo")


def test_what_is_said_elsewhere_appears_while_one_types(
    chat: Chat, running: RunningGateway, home: Path
) -> None:
    terminal = chat("shared")
    terminal.type("first\n")
    terminal.expect(ANSWERED)
    terminal.type("half a li")
    terminal.expect("half a li")
    trunkline("send", "from elsewhere", "--session", "shared", "--url", running.url, home=home)
    terminal.expect("from elsewhere")
    terminal.expect("tokens[^>]*> half a li")
    terminal.type("ne\n")
    terminal.expect(ANSWERED)
    assert "half a line" in trunkline("sessions", "show", "shared", home=home).stdout


def test_a_gateway_that_dies_in_the_middle_costs_nothing(tmp_path: Path) -> None:
    with gateway(tmp_path) as first:
        terminal = Terminal(tmp_path, "chat", "long", "--url", first.url)
        try:
            terminal.expect(OPEN)
            terminal.type("count slowly to 3\n")
            terminal.expect("2 of 3")
            first.stop(signal.SIGKILL)
            terminal.expect("reconnecting")
            with gateway(tmp_path, "--port", first.port):
                terminal.expect("Counted to 3")
                terminal.expect(ANSWERED)
                terminal.type("\x04")
                assert terminal.wait() == 0
                kept = trunkline("sessions", "export", "long", home=tmp_path).stdout
        finally:
            terminal.close()
    assert kept.count("## User") == 1
    assert kept.count("## Assistant") == 1


def test_without_a_gateway_it_says_how_to_start_one(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "chat", "--url", "http://127.0.0.1:9")
    try:
        assert terminal.wait() == 75
    finally:
        terminal.close()
    assert "start one: trunkline run" in terminal.screen


@pytest.mark.parametrize("typed", ["", "\n \n", "hello\n"])
def test_in_a_pipe_a_wrong_address_is_an_error_for_any_input(home: Path, typed: str) -> None:
    done = trunkline("chat", "--url", "http://127.0.0.1:1", home=home, stdin=typed)
    assert (done.returncode, done.stdout) == (75, "")
    assert "http://127.0.0.1:1" in done.stderr
    assert "start one: trunkline run" in done.stderr


def test_in_a_pipe_each_line_is_a_message_and_answers_are_plain(running: RunningGateway, home: Path) -> None:
    done = trunkline("chat", "--url", running.url, home=home, stdin="hello\n\n/usage\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("> hello\n")
    assert "- this conversation: " in done.stdout
    assert "\x1b" not in done.stdout
