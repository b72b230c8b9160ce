"""``trunkline channels``, run as a program beside a gateway."""

from __future__ import annotations

import json
from pathlib import Path

from tests.gateway.cli.processes import gateway, trunkline


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
