"""``trunkline channels``, run as a program beside a gateway."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.gateway.cli.processes import Terminal, gateway, trunkline

ROOT = Path(__file__).parents[3]


def test_channels_that_work_are_shown(tmp_path: Path) -> None:
    with gateway(tmp_path) as running:
        done = trunkline("channels", "status", home=tmp_path, TRUNKLINE_SERVER__PORT=running.port)
        told = trunkline("channels", "status", "--json", home=tmp_path, TRUNKLINE_SERVER__PORT=running.port)
    assert (done.returncode, done.stderr) == (0, "")
    assert "websocket" in done.stdout
    assert "works" in done.stdout
    assert json.loads(told.stdout) == {"websocket": {"ok": True, "detail": ""}}


def test_one_that_was_left_out_is_shown_with_the_reason(tmp_path: Path) -> None:
    given = {"TRUNKLINE_CHANNELS__PIGEON__LOFT": "roof"}
    with gateway(tmp_path, **given) as running:
        done = trunkline("channels", "status", home=tmp_path, TRUNKLINE_SERVER__PORT=running.port)
    assert done.returncode == 1
    assert "fails" in done.stdout
    assert "there is no such channel" in done.stdout


def test_without_a_gateway_it_says_so(tmp_path: Path) -> None:
    done = trunkline("channels", "status", home=tmp_path, TRUNKLINE_SERVER__PORT="1")
    assert done.returncode == 1
    assert "no gateway responds at" in done.stderr
    assert "(Connection refused)" in done.stderr
    assert "start one: trunkline run" in done.stderr


def test_channels_are_listed_with_their_sources(tmp_path: Path) -> None:
    info = tmp_path / "loft-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: loft\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[trunkline.channels]\npigeon = loft\n")
    path = os.pathsep.join((str(tmp_path), str(ROOT)))
    given = {"PYTHONPATH": path, "TRUNKLINE_CHANNELS__PIGEON__LOFT": "roof"}
    done = trunkline("channels", "list", home=tmp_path, **given)
    told = trunkline("channels", "list", "--json", home=tmp_path, **given)
    assert (done.returncode, done.stderr) == (0, "")
    assert "loft 1.2" in done.stdout
    rows = {row["name"]: (row["source"], row["enabled"]) for row in json.loads(told.stdout)}
    assert rows["pigeon"] == ("loft 1.2", True)
    assert rows["telegram"] == ("built in", False)


def test_a_terminal_that_is_too_narrow_for_a_table_gets_each_row_as_lines(tmp_path: Path) -> None:
    shown: list[list[list[str]]] = []
    for columns in ("80", "30"):
        terminal = Terminal(tmp_path, "channels", "list", COLUMNS=columns)
        try:
            terminal.wait()
            shown.append([line.split() for line in terminal.lines if line.strip()])
        finally:
            terminal.close()
    wide, narrow = shown
    assert wide[0] == ["channel", "enabled", "from"]
    assert ["discord", "no", "built", "in"] in wide
    assert narrow[:3] == [["channel", "discord"], ["enabled", "no"], ["from", "built", "in"]]


@pytest.mark.parametrize(("environ", "colored"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_errors_have_no_color_where_none_is_wanted(
    tmp_path: Path, environ: dict[str, str], colored: bool
) -> None:
    terminal = Terminal(tmp_path, "channels", "status", TRUNKLINE_SERVER__PORT="1", **environ)
    terminal.expect("no gateway responds")
    assert terminal.wait() == 1
    terminal.close()
    assert ("\x1b[31m" in terminal.screen) == colored
