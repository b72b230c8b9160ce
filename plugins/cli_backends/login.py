"""A program's own login: in the browser by the Agent Client Protocol, or with the program at the terminal."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from contextlib import aclosing
from tempfile import TemporaryDirectory

from gateway import SettingsError
from gateway.provider_http import AuthFailedError
from plugins.cli_backends.adapters.acp import AcpAdapter
from plugins.cli_backends.adapters.cli import Login
from plugins.cli_backends.adapters.protocol import ProgramRequest, SessionOpened
from plugins.cli_backends.backend import SpawnedBackend
from plugins.cli_backends.contract import BackendError
from plugins.cli_backends.run import Run
from plugins.programs.process import Launch

BROWSER = (
    *("BROWSER", "DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "NO_BROWSER", "SSH_CONNECTION"),
    *("WAYLAND_DISPLAY", "XAUTHORITY"),
)
TERMINAL = ("COLORTERM", "TERM")
VARIABLES = (*BROWSER, *TERMINAL)
"""Environment variables that a program gets for a login only."""

LOGIN_SECONDS = 330
"""The time limit of a login in the browser. The program itself waits for five minutes."""
CHECK_SECONDS = 60


class LoginAdapter(AcpAdapter):
    """The handshake of a dispatch, until the program opens a session."""

    def __init__(self, cwd: str, method: str) -> None:
        super().__init__(ProgramRequest(prompt="", system_prompt="", model="", cwd=cwd), method)

    def arguments(self) -> list[str]:
        """Return the arguments for the Agent Client Protocol."""
        return ["--acp"]


async def log_in(backend: SpawnedBackend, show: Callable[[str], None]) -> None:
    """Let the user log in to a program: in a browser if there is one, else at the terminal.

    The login succeeded if the program then opens a session. Raises AuthFailedError if it does not,
    BackendError if it cannot be started, and SettingsError if there is neither a browser nor a terminal.
    """
    login, title, environ = backend.cli.login, backend.cli.program.title, backend.environ
    if login is None:
        raise SettingsError(f"{title} has no login that the gateway can run")
    with TemporaryDirectory() as cwd:
        if has_browser(environ):
            show(f"{title} opens a browser for the login with {login.account}. It waits for five minutes.")
            variables = {name: environ[name] for name in BROWSER if name in environ}
            await _open_session(backend, cwd, login, variables, login.method)
        elif sys.stdin.isatty() and sys.stdout.isatty():
            show(f"There is no browser here, so {title} starts in this terminal: {login.steps}.")
            variables = {name: environ[name] for name in TERMINAL if name in environ}
            await _run_at_terminal(backend.launch([], cwd, {**variables, **login.variables}))
            await _open_session(backend, cwd, login, {}, "")
        else:
            raise SettingsError(
                f"the login of {title} needs a browser or a terminal: run the command in a terminal, or give "
                "a key with --key-stdin"
            )
    if backend.has_key():
        show(f"{title} also has a key ({backend.cli.program.key}), which it uses instead of the login.")


def has_browser(environ: Mapping[str, str]) -> bool:
    """Return whether a program can open a browser for the user of this machine."""
    if environ.get("NO_BROWSER") or environ.get("BROWSER") == "www-browser":
        return False
    if sys.platform == "darwin":
        return "SSH_CONNECTION" not in environ
    return bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))


async def _open_session(
    backend: SpawnedBackend, cwd: str, login: Login, variables: Mapping[str, str], method: str
) -> None:
    adapter = LoginAdapter(cwd, method)
    seconds = LOGIN_SECONDS if method else CHECK_SECONDS
    launch = backend.launch(adapter.arguments(), cwd, variables)
    try:
        run = Run(backend.cli, adapter, launch, seconds, seconds, None, backend.secrets())
        async with aclosing(run.steps()) as steps:
            async for step in steps:
                if isinstance(step, SessionOpened):
                    return
    except BackendError as error:
        if error.code == "SPAWN_FAILURE":
            raise
        raise AuthFailedError(
            f"{backend.cli.program.title} is not logged in: {error}. {login.advice}"
        ) from None


async def _run_at_terminal(launch: Launch) -> None:
    """Run the program in this terminal until the user leaves it."""
    variables = {name: value for name, value in launch.env.items() if name != "NO_COLOR"}
    process = await asyncio.create_subprocess_exec(*launch.argv, env=variables, cwd=launch.cwd)
    try:
        await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
