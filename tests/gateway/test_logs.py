"""Logs: for people or for machines, in lines of a bounded length, on standard error."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = """
import logging
import structlog
from gateway.logs import set_up_logs
from gateway.settings import LogSettings

set_up_logs(LogSettings(level={level!r}, format={format!r}))
log = structlog.get_logger("trunkline")
log.debug("quiet")
log.info("hello", session="s", text="x" * 20_000)
try:
    1 / 0
except ZeroDivisionError:
    log.exception("it failed")
logging.getLogger("library").warning("of a library")
logging.getLogger("library").info("chatter of a library")
"""


def logged(level: str = "info", form: str = "json") -> str:
    """What a process writes to standard error."""
    code = CODE.format(level=level, format=form)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == ""
    return done.stderr


@pytest.mark.parametrize("form", ["json", "auto"])
def test_machines_get_a_json_object_a_line(form: str) -> None:
    hello, failed, foreign = logged(form=form).splitlines()
    line = json.loads(hello)
    assert (line["event"], line["level"], line["session"]) == ("hello", "info", "s")
    assert line["timestamp"].endswith("Z")
    assert line["text"].endswith("… (20000 characters)")
    assert len(line["text"]) < 9_000
    assert "ZeroDivisionError" in json.loads(failed)["exception"]
    assert foreign == "library: of a library"


def test_people_get_words() -> None:
    text = logged(form="console")
    assert "hello" in text
    assert "session" in text
    assert "{" not in text.splitlines()[0]


@pytest.mark.parametrize(("level", "events"), [("debug", 3), ("warning", 1)])
def test_only_what_is_severe_enough_is_logged(level: str, events: int) -> None:
    assert len([line for line in logged(level).splitlines() if line.startswith("{")]) == events
