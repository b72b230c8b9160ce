"""Commands whose output cannot be written, or not in its encoding."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests import prefork
from tests.gateway.cli.processes import COMMAND, PATIENCE, environment, trunkline

FULL = Path("/dev/full")


def written_to(file: int, *words: str, home: Path) -> tuple[int, str]:
    """The exit status and the errors of a command whose output is this file."""
    command = [*COMMAND, *words]
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    env = environment(home)
    with prefork.Popen(
        command, cwd=home, env=env, stdin=null, stdout=file, stderr=pipe, text=True
    ) as process:
        _, errors = process.communicate(timeout=PATIENCE)
    return process.returncode, errors


COMMANDS = [
    ("--help",),
    ("plugin", "--help"),
    ("version",),
    ("version", "--json"),
    ("config", "show"),
    ("db", "status"),
    ("agents", "list"),
]
each_command = pytest.mark.parametrize("words", COMMANDS, ids=" ".join)


@each_command
def test_a_full_disk_is_one_line(tmp_path: Path, words: tuple[str, ...]) -> None:
    file = os.open(FULL, os.O_WRONLY)
    try:
        done = written_to(file, *words, home=tmp_path)
    finally:
        os.close(file)
    assert done == (1, "cannot write the output: No space left on device\n")


@each_command
def test_a_closed_pipe_ends_a_command_silently(tmp_path: Path, words: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = written_to(writer, *words, home=tmp_path)
    finally:
        os.close(writer)
    assert done == (1, "")


def test_what_the_encoding_of_the_output_lacks_is_ascii_or_escaped(tmp_path: Path) -> None:
    trunkline("db", "upgrade", home=tmp_path)
    done = trunkline("backup", "Ж…→.tar.gz", home=tmp_path, PYTHONIOENCODING="latin-1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("\\u0416...->.tar.gz: ")


@pytest.mark.parametrize("words", [("why", "a\udcff"), ("config", "set", "model", "a\udcff")], ids=" ".join)
def test_an_argument_that_is_not_text_is_one_line(tmp_path: Path, words: tuple[str, ...]) -> None:
    trunkline("db", "upgrade", home=tmp_path)
    done = trunkline(*words, home=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "an argument or the input is not text in UTF-8\n"


@pytest.mark.parametrize("words", [("sessions", "list", "--limit"), ("logs", "-n")], ids=" ".join)
def test_a_number_that_is_too_large_is_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = trunkline(*words, "9" * 20, home=tmp_path)
    assert done.returncode == 2
    assert "Error: Invalid value for '--" in done.stderr


def test_a_closed_input_is_an_empty_one(tmp_path: Path) -> None:
    command = [*COMMAND, "setup"]
    done = subprocess.run(
        ["/bin/sh", "-c", 'exec "$@" <&-', "sh", *command],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 2
    assert done.stderr == "stdin is not a terminal: give flags, see `trunkline setup --help`\n"


def test_a_working_directory_that_was_removed_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    done = subprocess.run(
        ["/bin/sh", "-c", 'cd gone; rmdir ../gone; exec "$@"', "sh", *COMMAND, "usage"],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 1
    assert done.stderr == "the working directory does not exist any more; change to another one\n"
