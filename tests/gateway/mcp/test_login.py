"""Logins at remote servers: the authorization server of the SDK, on a real socket."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import stat
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    RefreshToken,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.server.mcpserver import MCPServer
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl, AnyUrl

from gateway.mcp.remote import LoginFile
from gateway.server import Server
from gateway.testing.chat import Chat, chatting
from tests.gateway.cli.processes import environment

from .conftest import server, until, use
from .test_remote import listening

pytestmark = pytest.mark.slow


class Issuer:
    """An authorization server whose user agrees at once. ``refuses``: the user does not agree."""

    def __init__(self) -> None:
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.valid: set[str] = set()
        self.renewable: set[str] = set()
        self.renewals = 0
        self.expires_in = 3_600
        self.refuses = False

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        assert client_info.client_id is not None
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        back = str(params.redirect_uri)
        if self.refuses:
            return construct_redirect_uri(back, error="access_denied", state=params.state)
        code = f"code-{len(self.codes)}"
        self.codes[code] = AuthorizationCode(
            code=code,
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            client_id=client.client_id or "",
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=True,
            resource=params.resource,
        )
        return construct_redirect_uri(back, code=code, state=params.state)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self.codes[authorization_code.code]
        return self._tokens()

    async def load_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: str
    ) -> RefreshToken | None:
        if refresh_token not in self.renewable:
            return None
        return RefreshToken(token=refresh_token, client_id=client.client_id or "", scopes=[])

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        self.renewals += 1
        self.renewable.remove(refresh_token.token)
        return self._tokens()

    async def load_access_token(self, token: str) -> AccessToken | None:
        return AccessToken(token=token, client_id="any", scopes=[]) if token in self.valid else None

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        self.valid.discard(token.token)

    def _tokens(self) -> OAuthToken:
        access, refresh = os.urandom(8).hex(), os.urandom(8).hex()
        self.valid.add(access)
        self.renewable.add(refresh)
        return OAuthToken(access_token=access, refresh_token=refresh, expires_in=self.expires_in)


class Place:
    """A server that wants a login, the settings that name it, and the file with the login."""

    def __init__(self, folder: Path, port: int, issuer: Issuer) -> None:
        self.url = f"http://127.0.0.1:{port}/mcp"
        self.issuer = issuer
        self.data = folder / "data"
        self.file = self.data / "mcp" / "far.login"
        self._home = folder
        (folder / "config").mkdir()
        (folder / "config/trunkline.toml").write_text(f'data_dir = "{self.data}"\n')

    async def trunkline(self, *arguments: str, open_address: bool = True) -> tuple[int, str]:
        """Run a command; a browser opens the address that it shows. Returns status and output."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gateway", "mcp", *arguments),
            cwd=self._home,
            env=environment(self._home, TRUNKLINE_SERVER__PORT="1"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        assert process.stdout is not None
        said = ""
        async for line in process.stdout:
            said += line.decode()
            if open_address and (address := re.search(r"http://\S+/authorize\S+", line.decode())):
                async with aiohttp.ClientSession() as browser, browser.get(address[0]) as page:
                    said += await page.text()
        return await process.wait(), said

    async def log_in(self) -> None:
        status, said = await self.trunkline("login", "far", "--no-browser")
        assert status == 0, said

    @asynccontextmanager
    async def chat(self) -> AsyncGenerator[Chat]:
        async with chatting(
            self.data,
            mcp={"far": {"url": self.url}},
            permissions={"far_add": "allow"},
            server={"port": 0},
        ) as chat:
            await until(lambda: server(chat, "far").status.tools or server(chat, "far").problem)
            yield chat


@asynccontextmanager
async def placed(folder: Path, *, registers: bool = True) -> AsyncGenerator[Place]:
    """Serve a server that wants a login; ``registers``: its authorization server registers clients."""
    sock, issuer = socket.create_server(("127.0.0.1", 0)), Issuer()
    port = sock.getsockname()[1]
    auth = AuthSettings(
        issuer_url=AnyHttpUrl(f"http://127.0.0.1:{port}"),
        resource_server_url=AnyHttpUrl(f"http://127.0.0.1:{port}/mcp"),
        client_registration_options=ClientRegistrationOptions(enabled=registers),
        validate_token_resource=False,
    )
    made: Any = MCPServer("far", auth_server_provider=issuer, auth=auth)

    @made.tool()
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    async with listening(made.streamable_http_app(), sock):
        yield Place(folder, port, issuer)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncGenerator[Place]:
    async with placed(tmp_path) as made:
        yield made


async def test_004_T18_a_login_in_the_browser_gives_access_and_is_renewed(place: Place) -> None:
    status, said = await place.trunkline("add", "far", "--url", place.url)
    assert (status, "far is added, and needs a login: run trunkline mcp login far" in said) == (1, True)
    status, said = await place.trunkline("login", "far", "--no-browser")
    assert status == 0, said
    assert "You can close this page" in said
    assert "logged in at far, which has 1 tools; it takes effect at the next start" in said
    kept = LoginFile(place.file).load()
    assert kept is not None
    assert kept.access in place.issuer.valid
    assert kept.access not in said + repr(kept)
    assert stat.S_IMODE(place.file.stat().st_mode) == 0o600
    async with place.chat() as chat:
        assert (await use(chat, "far_add", a=2, b=3)).output == "5"
        place.issuer.valid.clear()
        assert (await use(chat, "far_add", "t", a=2, b=4)).output == "6"
        assert place.issuer.renewals == 1
        renewed = LoginFile(place.file).load()
        assert renewed is not None
        assert renewed.access in place.issuer.valid
    assert "the next call uses the login" in (await place.trunkline("login", "far", "--no-browser"))[1]


async def test_a_token_is_renewed_before_its_end(place: Place) -> None:
    await place.trunkline("add", "far", "--url", place.url)
    place.issuer.expires_in = 30
    await place.log_in()
    before = place.issuer.renewals
    place.issuer.expires_in = 3_600
    async with place.chat() as chat:
        # What a remote server says is content of others, so another call in that session would ask.
        assert (await use(chat, "far_add", a=2, b=3)).output == "5"
        assert (await use(chat, "far_add", "t", a=2, b=3)).output == "5"
    assert place.issuer.renewals == before + 1


async def test_without_a_valid_login_the_state_says_what_to_do(place: Place) -> None:
    async with place.chat() as chat:
        status = server(chat, "far").status
        assert status.state == "needs login"
        assert "run `trunkline mcp login far`" in status.problem
    await place.trunkline("add", "far", "--url", place.url)
    await place.log_in()
    async with place.chat() as chat:
        assert (await use(chat, "far_add", a=2, b=3)).output == "5"
        place.issuer.valid.clear()
        place.issuer.renewable.clear()
        assert "needs a login (401)" in (await use(chat, "far_add", "t", a=2, b=3)).output
        assert server(chat, "far").status.state == "needs login"


async def test_a_refused_login_leaves_nothing_and_says_why_in_one_line(place: Place) -> None:
    await place.trunkline("add", "far", "--url", place.url)
    place.issuer.refuses = True
    status, said = await place.trunkline("login", "far", "--no-browser")
    assert status == 1
    assert "the login failed: the authorization server refused: access_denied" in said
    assert "Traceback" not in said
    assert not place.file.exists()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        return reserved.getsockname()[1]


async def test_a_server_that_registers_no_clients_needs_one_in_the_settings(tmp_path: Path) -> None:
    async with placed(tmp_path, registers=False) as place:
        status, said = await place.trunkline("add", "far", "--url", place.url)
        assert (status, "far is added, and needs a login" in said) == (1, True)
        status, said = await place.trunkline("login", "far", "--no-browser")
        assert (status, "the server registers no clients; register one there" in said) == (1, True)
        async with place.chat() as chat:
            status = server(chat, "far").status
            assert (status.state, "set mcp.far.client_id" in status.problem) == ("needs registration", True)
        port = free_port()
        place.issuer.clients["trunkline"] = OAuthClientInformationFull(
            client_id="trunkline",
            client_secret="of-this-client",
            redirect_uris=[AnyUrl(f"http://127.0.0.1:{port}/callback")],
            grant_types=["authorization_code", "refresh_token"],
            token_endpoint_auth_method="client_secret_basic",
        )
        with (tmp_path / "config/trunkline.toml").open("a") as settings:
            settings.write(
                f'client_id = "trunkline"\nclient_secret = "of-this-client"\ncallback_port = {port}\n'
            )
        await place.log_in()
        async with place.chat() as chat:
            place.issuer.valid.clear()
            assert (await use(chat, "far_add", a=2, b=3)).output == "5"
        assert place.issuer.renewals == 1


async def test_a_running_gateway_offers_what_a_login_has_listed(place: Place) -> None:
    async with place.chat() as chat:
        assert server(chat, "far").status.state == "needs login"
        await place.trunkline("add", "far", "--url", place.url)
        await place.log_in()
        async with Server(chat.gateway) as served, aiohttp.ClientSession(served.url) as client:
            async with client.post("/api/plugins/mcp/servers/far/refresh") as answer:
                assert ((await answer.json())["state"], answer.status) == ("idle", 200)
            async with client.post("/api/plugins/mcp/servers/near/refresh") as answer:
                assert answer.status == 404
        assert (await use(chat, "far_add", a=2, b=3)).output == "5"
