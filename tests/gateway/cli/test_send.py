"""``trunkline send``: one message durably, one answer."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path

import pytest

from gateway.cli.chat.send import SendRequest, exchange
from gateway.contract.errors import TrunklineError
from tests.gateway.cli.processes import RunningGateway, gateway, trunkline


def send(
    running: RunningGateway, home: Path, *args: str, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    return trunkline("send", "--url", running.url, *args, home=home, stdin=stdin)


def test_the_answer_is_printed(running: RunningGateway, home: Path) -> None:
    done = send(running, home, "Hello there")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("> Hello there\n")
    assert "I am the built-in demo" in done.stdout


def test_json_tells_ids_and_parts(running: RunningGateway, home: Path) -> None:
    done = send(running, home, "what time is it?", "--session", "clock", "--json")
    told = json.loads(done.stdout)
    assert told["session"] == "clock"
    assert told["answer"]["id"] == told["answer_id"]
    assert [part["type"] for part in told["answer"]["parts"]] == ["text", "tool_call", "tool_result", "text"]
    assert "no model is" in told["text"]


def test_a_message_may_come_from_standard_input(running: RunningGateway, home: Path) -> None:
    done = send(running, home, "-", stdin="from a pipe\n")
    assert done.stdout.startswith("> from a pipe\n")


def test_bytes_that_are_not_text_do_not_end_it(running: RunningGateway, home: Path) -> None:
    done = send(running, home, "caf\udce9")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("> caf\ufffd\n")


def test_the_same_id_is_said_once(running: RunningGateway, home: Path) -> None:
    first = json.loads(send(running, home, "once", "--id", "report-1", "--json").stdout)
    second = json.loads(send(running, home, "once", "--id", "report-1", "--json").stdout)
    assert (first["duplicate"], second["duplicate"]) == (False, True)
    assert second["answer"]["id"] == first["answer"]["id"]
    assert second["session"] == first["session"]


def test_it_need_not_wait(running: RunningGateway, home: Path) -> None:
    done = send(running, home, "count slowly to 20", "--session", "later", "--no-wait")
    assert (done.returncode, done.stdout) == (0, "")
    assert "accepted in session later" in done.stderr


def test_it_waits_no_longer_than_it_may(running: RunningGateway, home: Path) -> None:
    done = send(running, home, "count slowly to 20", "--session", "slow", "--timeout", "0.5")
    assert done.returncode == 1
    assert "trunkline sessions show slow" in done.stderr


def test_an_answer_with_an_error_ends_with_1(tmp_path: Path) -> None:
    with gateway(tmp_path, "--port", "0", "--model", "nobody/nothing") as running:
        done = send(running, tmp_path, "hello")
    assert done.returncode == 1
    assert "no provider 'nobody'" in done.stderr


def test_nothing_to_send_is_said(running: RunningGateway, home: Path) -> None:
    done = send(running, home, "  ")
    assert (done.returncode, "empty" in done.stderr) == (1, True)


@pytest.mark.parametrize("url", ["http://[::1", "ftp://127.0.0.1", "http://127.0.0.1:99999", "http://"])
@pytest.mark.parametrize("command", [("send", "hello"), ("chat",)], ids=" ".join)
def test_what_is_not_the_url_of_a_gateway_is_refused(
    tmp_path: Path, command: tuple[str, ...], url: str
) -> None:
    done = trunkline(*command, "--url", url, home=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"--url: {url!r} is not the URL of a gateway; example: http://127.0.0.1:8080\n"


def test_without_a_gateway_it_says_how_to_start_one(tmp_path: Path) -> None:
    done = trunkline("send", "hello", "--url", "http://127.0.0.1:9", home=tmp_path)
    assert (done.returncode, done.stdout) == (75, "")
    said = "no gateway responds at http://127.0.0.1:9 (Connection refused); start one: trunkline run\n"
    assert done.stderr == said


def test_the_reason_of_a_failed_tls_connection_is_named(running: RunningGateway, home: Path) -> None:
    url = running.url.replace("http:", "https:")
    done = trunkline("send", "hello", "--url", url, home=home)
    assert (done.returncode, done.stdout) == (75, "")
    assert done.stderr.startswith(f"no TLS connection to {url}: [SSL")
    assert done.stderr.endswith("; a gateway without a proxy serves http://\n")


def test_a_wrong_token_is_refused_and_not_shown(tmp_path: Path) -> None:
    token = "right-" * 8
    with gateway(tmp_path, TRUNKLINE_SERVER__TOKEN=token) as running:
        wrong = send(running, tmp_path, "hello", "--token", "wrong-" * 8)
        right = send(running, tmp_path, "hello", "--token", token)
    assert (wrong.returncode, right.returncode) == (1, 0)
    assert "rejected the token" in wrong.stderr
    assert "wrong-" not in wrong.stderr


def test_the_token_of_the_settings_goes_to_the_address_of_the_settings_only(tmp_path: Path) -> None:
    token = "right-" * 8
    with gateway(tmp_path, TRUNKLINE_SERVER__TOKEN=token) as running:
        known = {"TRUNKLINE_SERVER__TOKEN": token, "TRUNKLINE_SERVER__PORT": running.port}
        here = trunkline("send", "hello", home=tmp_path, **known)
        elsewhere = trunkline("send", "hello", "--url", running.url, home=tmp_path, **known)
    assert (here.returncode, elsewhere.returncode) == (0, 1)
    advice = "needs a token: use --token, or set server.token in the settings and omit --url\n"
    assert elsewhere.stderr == f"the gateway at {running.url} {advice}"


@pytest.mark.parametrize(
    ("status", "cause"),
    [
        (502, "a proxy there does not reach its gateway, or no node of the cluster is active"),
        (404, "it is not a gateway, or its websocket channel is disabled"),
    ],
)
async def test_the_status_says_whether_a_proxy_has_no_gateway(status: int, cause: str) -> None:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 %d Refused\r\nContent-Length: 0\r\n\r\n" % status)
        writer.close()

    async with await asyncio.start_server(respond, "127.0.0.1") as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(TrunklineError) as caught:
            await exchange(url, None, SendRequest("s", "hello"))
    assert str(caught.value) == f"{url} responds with status {status}; {cause}"
