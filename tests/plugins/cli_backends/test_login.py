"""``trunkline auth login gemini``, at a pseudo-terminal, with pretended programs and the real one."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from gateway.testing.chat import chatting
from gateway.testing.fake_models.server import FakeModels
from plugins.cli_backends import CliBackends
from tests.gateway.cli.processes import Terminal, trunkline
from tests.plugins.cli_backends.pretend import noted, program

KEY = "AIza-0123456789-very-secret"
REFUSED = "This client is no longer supported for Gemini Code Assist for individuals."
ASKS = r"press Enter to use the login of gemini\): "
"""The space comes when the echo is off; what is typed earlier is dropped."""
GEMINI = """
login = os.path.join(os.environ["HOME"], "login")
key = os.environ.get("GEMINI_API_KEY", "")
note("seen", {name: os.environ.get(name) for name in ("DISPLAY", "NO_BROWSER", "TERM")})

def keep():
    open(login, "w").close()

def answer(message, **result):
    out(jsonrpc="2.0", id=message["id"], result=result)

def refuse(message, why):
    out(jsonrpc="2.0", id=message["id"], error={"code": -32000, "message": why})

if "--acp" not in sys.argv:
    print("a screen of its own", flush=True)
    if input("code? ") == "right":
        keep()
    sys.exit()
while True:
    message = read()
    note("methods", [message["method"], message["params"].get("methodId")])
    match message["method"]:
        case "authenticate" if "REFUSED":
            refuse(message, "REFUSED")
        case "authenticate":
            keep()
            answer(message)
        case "session/new" if key or os.path.exists(login):
            answer(message, sessionId="s")
        case "session/new":
            refuse(message, "Gemini API key is missing or not configured.")
        case "session/prompt":
            text = {"type": "text", "text": "key: " + key[::-1]}  # backwards, for answers do not show keys
            chunk = {"sessionUpdate": "agent_message_chunk", "content": text}
            out(jsonrpc="2.0", method="session/update", params={"sessionId": "s", "update": chunk})
            answer(message, stopReason="end_turn")
        case _:
            answer(message)
"""


def pretend(home: Path, google: str = "http://127.0.0.1:1", refused: str = "") -> Path:
    """Write the settings of a gateway with a program that pretends to be Gemini CLI; returns its folder."""
    folder = home / "bin"
    settle(home, program(folder, GEMINI.replace("REFUSED", refused), "gemini"), google)
    return folder


def settle(home: Path, binary: Path, google: str) -> None:
    text = (
        f'[plugins]\nenabled = ["cli_backends"]\n[plugins.cli_backends.plugins.gemini]\nbinary = "{binary}"\n'
    )
    (home / "own.toml").write_text(f'{text}[providers.google]\nbase_url = "{google}"\n')


async def login(home: Path, *args: str, stdin: str = "", **environ: str) -> CompletedProcess[str]:
    """Log in without a terminal."""
    screens = {"DISPLAY": "", "WAYLAND_DISPLAY": "", **environ}
    args = ("auth", "login", *args, "--config", "own.toml")
    return await asyncio.to_thread(trunkline, *args, home=home, stdin=stdin, **screens)


def at_terminal(home: Path) -> Terminal:
    """Log in to ``gemini`` at a terminal of a machine without a browser."""
    command = ("auth", "login", "gemini", "--config", "own.toml")
    return Terminal(home, *command, DISPLAY="", WAYLAND_DISPLAY="")


def kept(home: Path) -> dict[str, Any]:
    file = home / "data" / "keys.json"
    return json.loads(file.read_text()) if file.exists() else {}


async def said(home: Path, folder: Path, **settings: Any) -> str:
    """What the program answers in a chat of the gateway whose keys these are."""
    async with chatting(
        home / "data", CliBackends(), model="gemini/default", plugins=plugins(home, folder), **settings
    ) as chat:
        return (await chat.say("Hello.")).text


def plugins(home: Path, folder: Path) -> dict[str, Any]:
    """Settings of the plugin: the program, and the home folder with its login."""
    program = {"binary": str(folder / "gemini"), "env": {"HOME": str(home), "PATH": os.defpath}}
    return {"cli_backends": {"plugins": {"gemini": program}}}


async def test_000_09_with_a_browser_the_program_logs_in_and_keeps_its_login(tmp_path: Path) -> None:
    folder = pretend(tmp_path)
    done = await login(tmp_path, "gemini", DISPLAY=":7")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Gemini CLI opens a browser for the login with a Google account" in done.stdout
    assert done.stdout.splitlines()[-1] == "Signed in to gemini; its program stores the login"
    assert noted(folder, "methods")[1] == ["authenticate", "oauth-personal"]
    assert noted(folder, "seen")[-1]["DISPLAY"] == ":7"
    assert (tmp_path / "login").exists()
    assert kept(tmp_path) == {}


async def test_a_refused_login_names_the_reason_and_the_key_that_works(tmp_path: Path) -> None:
    pretend(tmp_path, refused=REFUSED)
    done = await login(tmp_path, "gemini", DISPLAY=":7")
    assert done.returncode == 1
    assert done.stderr.startswith("Gemini CLI is not logged in: ")
    assert REFUSED in done.stderr
    assert "create one at https://aistudio.google.com/apikey" in done.stderr
    assert "Signed in" not in done.stdout


async def test_without_a_browser_and_a_terminal_nothing_is_started(tmp_path: Path) -> None:
    folder = pretend(tmp_path)
    done = await login(tmp_path, "gemini")
    assert done.returncode == 2
    assert "the login of Gemini CLI needs a browser or a terminal" in done.stderr
    assert "--key-stdin" in done.stderr
    assert noted(folder, "seen") == []


def test_without_a_browser_the_program_runs_at_the_terminal(tmp_path: Path) -> None:
    folder = pretend(tmp_path)
    terminal = at_terminal(tmp_path)
    try:
        terminal.expect("A key of google works for both google and gemini")
        terminal.expect(ASKS)
        terminal.type("\n")
        terminal.expect('choose "Sign in with Google"')
        terminal.expect("a screen of its own")
        terminal.expect(r"code\?")
        terminal.type("right\n")
        terminal.expect("Signed in to gemini; its program stores the login")
        assert terminal.wait() == 0
    finally:
        terminal.close()
    assert noted(folder, "seen")[0] == {"DISPLAY": None, "NO_BROWSER": "true", "TERM": "xterm"}
    assert kept(tmp_path) == {}


def test_a_program_that_was_left_without_a_login_is_reported(tmp_path: Path) -> None:
    pretend(tmp_path)
    terminal = at_terminal(tmp_path)
    try:
        terminal.expect(ASKS)
        terminal.type("\n")
        terminal.expect(r"code\?")
        terminal.type("wrong\n")
        terminal.expect("Gemini CLI is not logged in")
        assert terminal.wait() == 1
    finally:
        terminal.close()


async def test_a_typed_key_is_kept_for_the_api_and_serves_the_program_too(tmp_path: Path) -> None:
    async with FakeModels(key=KEY) as fake:
        folder = pretend(tmp_path, fake.at("google"))
        terminal = at_terminal(tmp_path)
        try:
            await asyncio.to_thread(terminal.expect, ASKS)
            terminal.type(f"{KEY}\n")
            await asyncio.to_thread(terminal.expect, "google accepted it")
            await asyncio.to_thread(terminal.expect, "gemini uses this key too")
            assert await asyncio.to_thread(terminal.wait) == 0
        finally:
            terminal.close()
    assert KEY not in terminal.screen
    assert kept(tmp_path) == {"google": {"type": "api", "key": KEY}}
    assert await said(tmp_path, folder) == f"key: {KEY[::-1]}"


async def test_a_key_from_the_input_is_tried_and_serves_both(tmp_path: Path) -> None:
    async with FakeModels(key=KEY) as fake:
        folder = pretend(tmp_path, fake.at("google"))
        wrong = await login(tmp_path, "gemini", "--key-stdin", stdin="another-key-altogether")
        assert (wrong.returncode, kept(tmp_path)) == (1, {})
        done = await login(tmp_path, "gemini", "--key-stdin", stdin=KEY)
    assert done.returncode == 0, done.stderr
    assert "gemini uses this key too; `trunkline auth logout google` removes it for both" in done.stdout
    assert await said(tmp_path, folder) == f"key: {KEY[::-1]}"
    assert noted(folder, "methods")[1] == ["authenticate", "gemini-api-key"]


async def test_a_key_in_the_settings_of_the_api_is_not_spent_by_the_program(tmp_path: Path) -> None:
    folder = pretend(tmp_path)
    (tmp_path / "login").touch()
    assert await said(tmp_path, folder, providers={"google": {"api_key": KEY}}) == "key: "


async def test_a_program_that_takes_no_key_from_the_gateway_is_given_none(tmp_path: Path) -> None:
    pretend(tmp_path)
    for args in (("codex",), ("codex", "--key-stdin")):
        done = await login(tmp_path, *args, stdin=KEY)
        assert done.returncode == 2, done.stderr
        assert "codex uses no key of the gateway: log in with its own program" in done.stderr
    assert kept(tmp_path) == {}


@pytest.mark.timeout(120)
async def test_the_real_program_opens_the_browser_and_reports_a_refusal(
    tmp_path: Path, foreign: Path
) -> None:
    binary = foreign / "node_modules" / "@google/gemini-cli/bundle/gemini.js"
    settle(tmp_path, binary, "http://127.0.0.1:1")
    browser = tmp_path / "bin" / "xdg-open"
    browser.parent.mkdir()
    browser.write_text(f"""#!{sys.executable} -IS
import sys, urllib.error, urllib.parse, urllib.request
asked = urllib.parse.parse_qs(urllib.parse.urlsplit(sys.argv[1]).query)
open(__file__ + ".asked", "w").write(sys.argv[1])
class Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args): return None
try:
    address = asked["redirect_uri"][0] + "?error=access_denied"
    urllib.request.build_opener(Stay).open(address)
except urllib.error.HTTPError:
    pass
""")
    browser.chmod(0o755)
    path = f"{browser.parent}:{os.environ['PATH']}"
    done = await login(tmp_path, "gemini", DISPLAY=":7", PATH=path)
    assert done.returncode == 1, done.stdout
    assert "Google OAuth error: access_denied" in done.stderr
    assert "https://aistudio.google.com/apikey" in done.stderr
    assert "https://accounts.google.com/" in browser.with_name("xdg-open.asked").read_text()


@pytest.mark.timeout(120)
def test_the_real_program_offers_its_login_at_the_terminal(tmp_path: Path, foreign: Path) -> None:
    settle(tmp_path, foreign / "node_modules" / "@google/gemini-cli/bundle/gemini.js", "http://127.0.0.1:1")
    terminal = at_terminal(tmp_path)
    try:
        terminal.expect(ASKS)
        terminal.type("\n")
        terminal.expect("starts in this terminal: choose")
        terminal.expect("How would you like to authenticate", 60)
    finally:
        terminal.close()
    assert "Do you trust the files" not in terminal.screen
