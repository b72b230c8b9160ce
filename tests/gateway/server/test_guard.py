"""The guard: tokens, guessed tokens, foreign pages and host names; and details that no client receives."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import ClientSession
from sqlalchemy import select
from structlog.testing import capture_logs

from gateway import Plugin
from gateway.store import schema
from gateway.store.writes import Write
from gateway.testing.served import Served, serving

pytestmark = pytest.mark.slow

TOKEN = "a-token-of-at-least-thirty-two-characters"
GUARDED: dict[str, Any] = {"server": {"token": TOKEN}}
CHAT_PAGE: dict[str, Any] = {"token": TOKEN, "allowed_origins": ["https://chat.example"]}
RIGHT, WRONG = {"Authorization": f"Bearer {TOKEN}"}, {"Authorization": "Bearer wrong"}

OURS = ("/api/sessions", "/api/sessions/s", "/api/status", "/api/dead", "/sessions/s/events", "/metrics")
OPEN = ("/healthz", "/readyz", "/", "/page/app.js", "/openapi.json")

RawAsk = Callable[[str, bytes], Awaitable[bytes]]


@pytest.mark.parametrize("path", OURS)
async def test_what_is_ours_needs_the_token(tmp_path: Path, path: str) -> None:
    async with serving(tmp_path, **GUARDED) as served:
        without, named = await served.ask("GET", path)
        wrong, _ = await served.ask("GET", path, headers=WRONG)
        basic, _ = await served.ask("GET", path, headers={"Authorization": f"Basic {TOKEN}"})
        async with served.http.get(served.url + path, headers=RIGHT) as right:
            assert (without, wrong, basic) == (401, 401, 401)
            assert named["error_name"] == "UnauthorizedError"
            assert right.status in (200, 404)


@pytest.mark.parametrize("path", OPEN)
async def test_what_a_page_and_a_watchdog_need_is_open(tmp_path: Path, path: str) -> None:
    async with (
        serving(tmp_path, **GUARDED) as served,
        served.http.get(served.url + path) as response,
    ):
        assert response.status == 200


async def test_without_a_token_this_machine_needs_none(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        assert (await served.ask("GET", "/api/sessions"))[0] == 200
        async with served.http.get(served.url + "/metrics") as response:
            assert response.status == 200


@pytest.mark.parametrize(
    "query", [f"token={TOKEN}", f"access_token={TOKEN}", f"Token={TOKEN}", f"api_key={TOKEN}&limit=1"]
)
@pytest.mark.parametrize("path", ["/", "/ws", "/api/sessions", "/healthz", "/nowhere"])
async def test_a_token_in_an_address_is_refused_and_never_logged(
    tmp_path: Path, path: str, query: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with capture_logs() as logs:
        async with serving(tmp_path, **GUARDED) as served:
            status, refused = await served.ask("GET", f"{path}?{query}", headers=RIGHT)
    out, err = capfd.readouterr()
    assert (status, refused["error_name"]) == (400, "InvalidRequestError")
    assert TOKEN not in repr(logs) + out + err + refused["message"]


async def test_after_ten_wrong_tokens_wrong_ones_wait_and_the_right_one_does_not(tmp_path: Path) -> None:
    async with serving(tmp_path, **GUARDED) as served:
        guesses = [(await served.ask("GET", "/api/sessions", headers=WRONG))[0] for _ in range(11)]
        async with served.http.get(f"{served.url}/api/sessions", headers=RIGHT) as response:
            assert response.status == 200
        async with served.http.get(f"{served.url}/api/sessions", headers=WRONG) as response:
            refused = await response.json()
        assert guesses == [401] * 10 + [429]
        assert (response.status, refused["error_name"]) == (429, "TooManyRequestsError")
        assert response.headers["Retry-After"] == "60"
        assert (await served.ask("GET", "/healthz"))[0] == 200
        guesser = await served.connect(token="wrong", greeted=False)
        assert await guesser.close_code() == 4029


async def test_a_request_without_a_token_is_not_a_guess(tmp_path: Path) -> None:
    async with serving(tmp_path, **GUARDED) as served:
        for _ in range(20):
            assert (await served.ask("GET", "/api/sessions"))[0] == 401
        assert (await served.ask("GET", "/api/sessions", headers=RIGHT))[0] == 200


async def test_a_socket_shows_its_token_in_a_header_a_subprotocol_or_the_first_frame(tmp_path: Path) -> None:
    async with serving(tmp_path, **GUARDED) as served:
        async with served.socket(token=TOKEN) as client:
            assert client.frames[0]["user"] == "owner"
            assert client.socket.protocol == "trunkline.v1"
        async with served.socket(headers=RIGHT) as client:
            assert client.frames[0]["type"] == "ready"
        async with served.socket(greeted=False) as client:
            await client.send(type="auth", token=TOKEN)
            assert (await client.read())["type"] == "ready"


@pytest.mark.parametrize(
    "how", [{"token": "wrong"}, {"headers": WRONG}, {"token": "ä"}, {"token": ""}], ids=repr
)
async def test_a_socket_with_a_wrong_token_is_closed(tmp_path: Path, how: dict[str, Any]) -> None:
    async with serving(tmp_path, **GUARDED) as served:
        client = await served.connect(greeted=False, **how)
        assert await client.close_code() == 4001


@pytest.mark.parametrize(
    "frame",
    [
        '{"type":"auth","token":"wrong"}',
        '{"type":"auth","token":"\\ud800 "}',
        '{"type":"auth"}',
        '{"type":"ping"}',
        '{"type":"message","client_msg_id":"1","text":"Hi"}',
        "hello",
    ],
)
async def test_a_first_frame_that_holds_no_right_token_closes_the_socket(tmp_path: Path, frame: str) -> None:
    async with serving(tmp_path, **GUARDED) as served:
        client = await served.connect(greeted=False)
        await client.socket.send_str(frame)
        assert await client.close_code() == 4001
        assert client.frames == []


async def test_a_foreign_page_may_not_ask(tmp_path: Path) -> None:
    async with serving(tmp_path, server=CHAT_PAGE) as served:
        own = served.url
        port = own.rsplit(":", 1)[1]
        for origin, expected in (
            (own, 200),
            ("https://chat.example", 200),
            ("HTTPS://CHAT.EXAMPLE", 200),
            ("https://evil.example", 403),
            (f"http://localhost:{port}", 403),
            ("http://127.0.0.1:1", 403),
            ("null", 403),
            ("http://[", 403),
            (f"file://127.0.0.1:{port}", 403),
        ):
            status, said = await served.ask("GET", "/api/sessions", headers=RIGHT | {"Origin": origin})
            assert (origin, status) == (origin, expected)
            assert expected == 200 or said["error_name"] == "ForeignPageError"


async def test_a_foreign_page_gets_no_socket_and_a_client_without_a_page_does(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await served.connect(headers={"Origin": "https://evil.example"})
        assert refused.value.status == 403
        async with served.socket(headers={"Origin": served.url}) as own, served.socket() as none:
            assert own.frames[0]["type"] == none.frames[0]["type"] == "ready"


async def test_a_name_that_was_bound_to_this_address_is_not_ours(tmp_path: Path) -> None:
    async with serving(tmp_path, server=CHAT_PAGE) as served:
        for host, expected in (
            ("127.0.0.1", 200),
            ("localhost:8080", 200),
            ("LOCALHOST", 200),
            ("chat.localhost", 200),
            ("[::1]:80", 200),
            ("127.9.9.9", 200),
            ("chat.example", 200),
            ("evil.example", 421),
            ("evil.example:8080", 421),
            ("localhost.evil.example", 421),
            ("127.0.0.1.evil.example", 421),
            ("0x7f.1", 421),
            ("2130706433", 421),
            ("0.0.0.0", 421),
            ("10.0.0.1", 421),
            ("", 421),
        ):
            status, said = await served.ask("GET", "/api/sessions", headers=RIGHT | {"Host": host})
            assert (host, status) == (host, expected)
            assert expected == 200 or said["error_name"] == "MisdirectedRequestError"
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await served.connect(headers={"Host": "evil.example"})
        assert refused.value.status == 421


async def test_a_request_that_names_no_host_is_from_no_browser(tmp_path: Path, raw_ask: RawAsk) -> None:
    async with serving(tmp_path) as served:
        answer = await raw_ask(served.url, b"GET /healthz HTTP/1.0\r\n\r\n")
        assert b" 200 " in answer.split(b"\r\n")[0]


@pytest.mark.parametrize("path", ["/", "/page/app.js", "/api/sessions", "/nowhere", "/metrics", "/ws"])
async def test_every_answer_keeps_browsers_strict(tmp_path: Path, path: str) -> None:
    async with serving(tmp_path) as served, served.http.get(served.url + path) as response:
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["Referrer-Policy"] == "no-referrer"
        assert response.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        policy = response.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert "aiohttp" not in response.headers["Server"]


@pytest.mark.parametrize(
    "path",
    [
        "/page/../channel.py",
        "/page/..%2Fchannel.py",
        "/page/%2e%2e%2fchannel.py",
        "/page/..",
        "/page/.",
        "/page/%2e%2e",
        "/page/%2Fetc%2Fpasswd",
        "/page//etc/passwd",
        "/page/..%5Cchannel.py",
        "/page/app.js%00.html",
        "/page/%ff%fe",
        "/page/" + "x" * 5000,
        "/page/",
        "/page/nothing.js",
        "/channel.py",
    ],
)
async def test_only_the_page_is_served(tmp_path: Path, raw_ask: RawAsk, path: str) -> None:
    async with serving(tmp_path) as served:
        request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        answer = await raw_ask(served.url, request.encode())
        assert b" 404 " in answer.split(b"\r\n")[0]
        assert b"NotFoundError" in answer


GARBAGE = [
    b"hello\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET /\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nBad Header\r\n\r\n",
    b"GET /?token=SECRETSECRET HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
    b"GET /?token=SECRETSECRET" + b"z" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"POST /api/sessions/s/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
    b"POST /api/sessions/s/messages HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03SECRETSECRET",
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
async def test_garbage_is_refused_and_not_quoted_in_the_log(
    tmp_path: Path,
    raw_ask: RawAsk,
    garbage: bytes,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with capture_logs() as logs:
        async with serving(tmp_path) as served:
            answer = await raw_ask(served.url, garbage + b"\r\n\r\n")
            alive, _ = await served.ask("GET", "/healthz")
    out, err = capfd.readouterr()
    assert b" 400 " in answer.split(b"\r\n")[0]
    assert b"Traceback" not in answer
    assert alive == 200
    assert "SECRETSECRET" not in repr(logs) + out + err + caplog.text


async def test_a_fault_of_our_own_is_named_and_only_the_log_knows_more(tmp_path: Path) -> None:
    async with serving(tmp_path, Saboteur()) as served:
        with capture_logs() as logs:
            status, said = await served.ask("GET", "/api/status")
        fault = said["message"].rsplit(" ", 1)[1]
        assert (status, said["error_name"], said["retryable"]) == (500, "InternalError", False)
        assert "sabotage" not in said["message"]
        assert [(entry["fault"], str(entry["exc_info"])) for entry in logs] == [(fault, "sabotage")]
        assert (await served.ask("GET", "/healthz"))[0] == 200


class Saboteur(Plugin):
    """Plugin that breaks a part that the server relies on."""

    name = "saboteur"

    async def activate(self, ctx: Any) -> None:
        """Take the sessions' list of live ones away."""

        calls: list[None] = []

        def live() -> tuple[()]:
            calls.append(None)
            if len(calls) > 1:  # the first call is of the start
                raise RuntimeError("sabotage")
            return ()

        # The gateway's own sessions: the plugin's view of them calls their methods.
        ctx.sessions._sessions.live = live


async def test_many_sockets_at_once_are_kept_apart(tmp_path: Path) -> None:
    async with serving(tmp_path, **GUARDED) as served:

        async def one(token: str) -> int | None:
            client = await served.connect(token=token, greeted=False)
            kind = (await client.read())["type"] if token == TOKEN else await client.close_code()
            await client.socket.close()
            return 0 if kind == "ready" else kind

        codes = await asyncio.gather(*(one(TOKEN if n % 5 else "wrong") for n in range(20)))
        assert [codes[n] for n in range(20)] == [0 if n % 5 else 4001 for n in range(20)]


async def test_a_sign_out_removes_the_ends_of_logins_that_are_a_year_old(tmp_path: Path) -> None:
    async with serving(tmp_path, **GUARDED) as served:
        store, ends = served.gateway.parts.store, Write("insert", 0, schema.ended_login, "id")
        months = {n: f"{int(time.time()) - n * 30 * 86_400}.digest" for n in (2, 11, 13, 120)}
        await store.write(*((ends, (login,)) for login in months.values()))
        async with served.http.post(f"{served.url}/api/browser", headers=RIGHT) as answer:
            cookie = answer.headers["Set-Cookie"].partition(";")[0]
        asked = {"Cookie": cookie, "Origin": served.url}
        async with ClientSession() as http, http.delete(f"{served.url}/api/browser", headers=asked) as answer:
            assert answer.status == 204
        kept = await store.read(lambda c: set(c.execute(select(schema.ended_login.c.id)).scalars()))
        assert len(kept) == 3
        assert kept > {months[2], months[11]}


async def test_a_login_of_the_chat_page_that_was_ended_never_counts_again(tmp_path: Path) -> None:
    async def begin(served: Served) -> dict[str, str]:
        async with served.http.post(f"{served.url}/api/browser", headers=RIGHT) as answer:
            (sent,) = answer.headers.getall("Set-Cookie")
        return {"Cookie": sent.partition(";")[0], "Origin": served.url}

    async def counts(served: Served, login: dict[str, str]) -> bool:
        """Return whether REST and the websocket take a login; they agree."""
        login = {**login, "Origin": served.url}
        async with ClientSession() as http, http.get(f"{served.url}/api/sessions", headers=login) as answer:
            status = answer.status
        client = await served.connect(html=True, headers=login, greeted=False)
        kind = (await client.read())["type"] if status == 200 else await client.close_code()
        await client.socket.close()
        assert (status, kind) in ((200, "ready"), (401, 4001))
        return status == 200

    async with serving(tmp_path, **GUARDED) as served:
        # Another browser that signs in with the same token, within the same second.
        login, other = await begin(served), await begin(served)
        open_tab = await served.connect(html=True, headers=login)
        assert open_tab.frames[0]["signed_in"] is True
        assert await counts(served, login)
        async with ClientSession() as http:
            async with http.delete(f"{served.url}/api/browser", headers=login) as answer:
                assert answer.status == 204
                assert "Max-Age=0" in answer.headers["Set-Cookie"]
            async with http.delete(f"{served.url}/api/browser", headers=login) as answer:
                assert answer.status == 401
        assert await open_tab.close_code() == 4001
        # Other forms of the cookie are the same login.
        for end in ("", ".", ".owner"):
            assert not await counts(served, {"Cookie": login["Cookie"] + end})
        assert await counts(served, other)
        again = await begin(served)
        assert await counts(served, again)
        async with served.socket(token=TOKEN) as client:
            assert client.frames[0]["signed_in"] is False
        audit = await served.ask("GET", "/api/audit", headers=RIGHT)
        assert "chat.logout" in str(audit)
    async with serving(tmp_path, **GUARDED) as served:
        assert not await counts(served, {"Cookie": renamed(login, served)})
        assert await counts(served, {"Cookie": renamed(again, served)})


def renamed(login: dict[str, str], served: Served) -> str:
    """Return the cookie of a login as it is named at the port of this gateway."""
    return f"trunkline_{served.url.rpartition(':')[2]}={login['Cookie'].partition('=')[2]}"
