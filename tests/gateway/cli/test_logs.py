"""``trunkline logs``, run as a program."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.gateway.cli.processes import gateway, started, trunkline

SECRET = "sk-this-is-the-key-of-somebody"


def kept(home: Path, *events: dict[str, object], number: int = 0) -> Path:
    """Lines in a log file; ``number`` 1 is the one before the newest."""
    path = home / "data/logs" / ("trunkline.jsonl" + (f".{number}" if number else ""))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.writelines(
            json.dumps({"timestamp": "2026-01-01T00:00:00Z", "level": "info", **e}) + "\n" for e in events
        )
    return path


def test_a_turn_is_printed_with_its_session_and_without_any_secret(tmp_path: Path) -> None:
    environ = {
        "TRUNKLINE_LOG__LEVEL": "debug",
        "OPENAI_API_KEY": SECRET,
        "TRUNKLINE_PROVIDERS__OPENAI__BASE_URL": "http://127.0.0.1:1/v1",
        "TRUNKLINE_PROVIDERS__OPENAI__MAX_RETRIES": "1",
        "TRUNKLINE_MODEL": "openai/x",
    }
    with gateway(tmp_path, **environ) as running:
        trunkline("send", "Hi", "--session", "s", "--url", running.url, home=tmp_path)
        assert running.stop() == 0
    done = trunkline("logs", "--session", "s", home=tmp_path)
    assert done.returncode == 0
    (turn,) = [line for line in done.stdout.splitlines() if " info     turn " in line]
    (retry,) = [line for line in done.stdout.splitlines() if "retrying a model call" in line]
    assert "session=s" in turn
    assert "error=ProviderUnavailableError" in turn
    assert "provider=openai model=x session=s attempt=1" in retry
    assert SECRET not in "".join(path.read_text() for path in (tmp_path / "data/logs").iterdir())


def test_the_latest_lines_are_printed_also_of_older_files(tmp_path: Path) -> None:
    kept(tmp_path, *({"event": f"old {n}"} for n in range(3)), number=1)
    kept(tmp_path, *({"event": f"new {n}"} for n in range(2)))
    done = trunkline("logs", "--lines", "3", "--json", home=tmp_path)
    assert [json.loads(line)["event"] for line in done.stdout.splitlines()] == ["old 2", "new 0", "new 1"]


@pytest.mark.parametrize(
    ("options", "events"),
    [(("--level", "warning"), ["b", "c"]), (("--session", "s"), ["a", "c"]), (("--lines", "1"), ["c"])],
)
def test_lines_are_chosen_by_level_and_session(
    tmp_path: Path, options: tuple[str, ...], events: list[str]
) -> None:
    kept(tmp_path, {"event": "a", "session": "s"}, {"event": "b", "level": "error"})
    kept(tmp_path, {"event": "c", "level": "warning", "session": "s"})
    done = trunkline("logs", "--json", *options, home=tmp_path)
    assert [json.loads(line)["event"] for line in done.stdout.splitlines()] == events


def test_nothing_that_was_logged_steers_the_terminal(tmp_path: Path) -> None:
    kept(tmp_path, {"event": "\x1b[2Jgone", "text": "a\x07b"})
    done = trunkline("logs", home=tmp_path)
    assert "\\x1b[2Jgone" in done.stdout
    assert not set(done.stdout) & {"\x1b", "\x07"}


def test_without_logs_it_says_where_they_would_be(tmp_path: Path) -> None:
    done = trunkline("logs", home=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{tmp_path}/data/logs contains no logs" in done.stderr


@contextmanager
def following(home: Path) -> Iterator[Iterator[str]]:
    """The events that ``logs --follow`` prints."""
    process = started("logs", "--follow", "--json", home=home)
    assert process.stdout is not None
    try:
        yield (json.loads(line)["event"] for line in process.stdout)
    finally:
        process.kill()
        process.communicate()


def test_following_continues_in_the_next_file(tmp_path: Path) -> None:
    path = kept(tmp_path, {"event": "first"})
    with following(tmp_path) as events:
        assert next(events) == "first"
        kept(tmp_path, {"event": "second"})
        assert next(events) == "second"
        path.rename(f"{path}.1")
        kept(tmp_path, {"event": "last of the old file"}, number=1)
        kept(tmp_path, {"event": "first of the new file"})
        assert [next(events) for _ in range(2)] == ["last of the old file", "first of the new file"]
