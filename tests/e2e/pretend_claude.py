#!/usr/bin/env python3
"""A program that shows the screens of Claude Code, and asks before each task.

A task is a shell command. All tasks and answers are kept in the file ``pretend.log`` of its home.
"""

from __future__ import annotations

import os
import subprocess
import sys
import termios
import tty
from pathlib import Path

DROPS = 0
"""Times that input is dropped after the start, as by a program that still sets up its terminal."""
WIDTH, HEIGHT = 120, 40
RULE, GLYPH = "\u2500" * WIDTH, "\u276f"
FRAME = "\u254c" * WIDTH


def note(word: str, text: str) -> None:
    with Path.home().joinpath("pretend.log").open("a") as log:
        log.write(f"{word} {text}\n")


def draw(content: list[str], box: list[str], row: int, column: int) -> None:
    """Draw the whole screen with the box at its end, and put the cursor at a row of the box."""
    head = ["", " Claude Code v2.1.330", "", *content]
    lines = [*head, *[""] * (HEIGHT - len(head) - len(box)), *box]
    screen = "".join(f"\x1b[{at};1H{line}\x1b[K" for at, line in enumerate(lines, 1))
    os.write(1, f"{screen}\x1b[{HEIGHT - len(box) + row + 1};{column + 1}H".encode())


def compose(content: list[str], typed: str) -> None:
    footer = "  ? for shortcuts" if not typed else ""
    draw(content, [RULE, f"{GLYPH} {typed}", RULE, footer], 1, 2 + len(typed))


def question(content: list[str], command: str) -> None:
    menu = [
        " Do you want to proceed?",
        f" {GLYPH} 1. Yes",
        "   2. Yes, and always allow access",
        "   3. No",
        "",
        " Esc to cancel \u00b7 Tab to amend",
    ]
    box = [RULE, " Bash command", " Fix it", FRAME, f" {command}", FRAME, *menu]
    draw(content, box, 7, 1)


def read_keys() -> str:
    keys = os.read(0, 4096).decode(errors="replace")
    return keys.replace("\x1b[200~", "").replace("\x1b[201~", "")


def ask(content: list[str], command: str) -> str:
    """Return the key that answers: Enter accepts too, as in the program itself."""
    while True:
        question(content, command)
        for key in read_keys():
            if key in "1\r\x1b":
                return key


def main() -> None:
    """Take tasks until the terminal is closed."""
    tty.setraw(0, termios.TCSANOW)
    os.write(1, b"\x1b[2J")
    content: list[str] = []
    typed = ""
    for _ in range(DROPS):
        compose(content, typed)
        read_keys()
    while True:
        compose(content, typed)
        keys = read_keys()
        for key in keys:
            if key != "\r":
                typed += key
                continue
            task, typed = typed, ""
            note("task", task)
            content = [f"{GLYPH} {task}", ""]
            key = ask(content, task)
            note("key", repr(key))
            if key == "\x1b":
                content += ["  \u23bf  Interrupted \u00b7 What should Claude do instead?"]
                continue
            done = subprocess.run(task, shell=True, check=False, capture_output=True, text=True)
            content += [
                f"\u25cf It is done, status {done.returncode}.",
                *done.stderr.splitlines()[:5],
                "",
                "\u273b Cooked for 1s",
            ]


if __name__ == "__main__":
    if sys.argv[1:] == ["--version"]:
        print("2.1.330 (Claude Code)")
    else:
        main()
