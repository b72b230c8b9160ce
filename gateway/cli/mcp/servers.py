"""``trunkline mcp list | add | test | login | tools | approve``.

A running gateway is asked, and changes what it offers at once; otherwise the file of known tools is.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
import typer
from msgspec import Struct
from rich.table import Table
from rich.text import Text

from gateway.cli.gateway_client import call, running_gateway
from gateway.cli.options import FAILED, AsJson, File, fail, settings_from
from gateway.cli.output import echo_json, plain, print_table, quiet
from gateway.cli.plugins.operator import one_line_errors
from gateway.cli.store_reader import is_locked
from gateway.contract.errors import NotFoundError, PluginError, SettingsError, ToolError
from gateway.extensions.process.service import Processes
from gateway.extensions.scope import PluginTasks
from gateway.mcp import McpPlugin, Server, ServerStatus, ToolState
from gateway.mcp.definitions import model_name
from gateway.mcp.plugin import known_tools, login_file
from gateway.settings import McpServerSettings, Settings, load_settings
from gateway.settings.layers.editing import EditedFile
from gateway.settings.layers.own_files import own_files

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the server in the settings.")]
Names = Annotated[list[str] | None, typer.Argument(metavar="TOOL...", help="Names of tools; default: all.")]
Command = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="-- COMMAND...", help="Program and arguments of a local server.", show_default=False
    ),
]
Env = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="NAME=VALUE",
        help="Variable of the server; ${VARIABLE} refers to the gateway's; repeatable.",
        show_default=False,
    ),
]
Headers = Annotated[
    list[str] | None,
    typer.Option(
        "--header",
        metavar="NAME=VALUE",
        help="HTTP header for a remote server; ${VARIABLE} refers to the gateway's; repeatable.",
        show_default=False,
    ),
]
Folders = list[Path] | None
_WAITING = ("changed", "new")
_PATH = "/api/plugins/mcp/servers"


class Tested(Struct, frozen=True):
    """The outcome of a test. ``seconds`` is the time until the server had listed its tools."""

    status: ServerStatus
    seconds: float


class NeedsLogin(ToolError):
    """A remote server that wants a login first."""


class Operator:
    """The servers of the settings, in the running gateway or, without one, in their files."""

    def __init__(self, config: Path | None) -> None:
        self.settings: Settings = settings_from(config)
        self._running = running_gateway(self.settings) is not None and is_locked(self.settings)

    def statuses(self) -> list[ServerStatus]:
        """Return the states of all servers."""
        if self._running and self.settings.mcp:
            return self._ask("GET", "", list[ServerStatus], "servers")
        return [self._server(name).status for name in self.settings.mcp]

    def tools(self, name: str) -> list[ToolState]:
        """Return the tools of a server, which is started if it was never listed."""
        self._settings(name)  # a gateway without servers does not know the address
        if self._running:
            return self._ask("GET", _path(name), list[ToolState], "tools")
        server = self._server(name)
        if server.known.is_empty:
            self.test(name)
            server.known.load()
        return server.known.states()

    def approve(self, name: str, tools: Sequence[str]) -> list[str]:
        """Approve tools as they are now. Return the names of those that had changed."""
        if self._running:
            body = {"tools": list(tools)}
            return self._ask("POST", f"{_path(name)}/approve", list[str], "approved", body)
        return self._server(name).known.approve(tools)

    def test(self, name: str) -> Tested:
        """Start a server, list its tools and end it. Raises ToolError."""
        with quiet():
            tested = asyncio.run(self._test(name))
        if isinstance(tested, ToolError):
            raise tested
        return tested

    def log_in(self, name: str, *, browser: bool) -> None:
        """Let the operator log in at a remote server, and keep the login. Raises PluginError."""
        settings = self._settings(name)
        if settings.url is None:
            raise SettingsError(f"the MCP server {name!r} runs on this machine and needs no login")
        try:
            # At first use: the SDK is an extra.
            from gateway.mcp.login import RegistrationRefused, log_in
            from gateway.mcp.remote import Login, LoginFile
        except ImportError as error:
            raise PluginError(f"MCP servers need the extra mcp ({error})") from None

        def show(url: str) -> None:
            typer.echo(plain(f"Open this address to log in: {url}"), err=True)
            if browser:
                webbrowser.open(url)

        file = LoginFile(login_file(self.settings.data_dir, name))
        try:
            with quiet():
                found = asyncio.run(log_in(settings, show))
        except RegistrationRefused:
            if file.load() is None:
                file.save(Login(""))  # the state says it from now on
            raise
        file.save(found)

    def is_known(self, name: str) -> bool:
        """Return whether a server was listed before."""
        return not self._server(name).known.is_empty

    def refresh(self, name: str) -> str:
        """Let the running gateway read what was listed and logged in here. Return when it takes effect."""
        if not self._running:
            return "it takes effect at the next start"
        try:
            call(self.settings, "POST", f"{_PATH}{_path(name)}/refresh")
        except NotFoundError:  # it does not have the server yet
            return "restart the running gateway"
        return "the running gateway uses it"

    async def _test(self, name: str) -> Tested | ToolError:
        begun = time.monotonic()
        processes = Processes(self.settings.plugins.sandbox, own=own_files(self.settings, os.environ))
        self._server(name)
        async with asyncio.TaskGroup() as group:
            tasks = PluginTasks("mcp", group)
            server = self._server(name, processes, tasks)
            try:
                await server.connect()
                return Tested(server.status, round(time.monotonic() - begun, 3))
            except ToolError as error:  # raised here, it would become a group of errors
                return NeedsLogin(str(error)) if server.status.state.startswith("needs") else error
            finally:
                await tasks.end()
                await processes.close()

    def _server(
        self, name: str, processes: Processes | None = None, tasks: PluginTasks | None = None
    ) -> Server:
        settings = self._settings(name)
        known = known_tools(self.settings.data_dir, name, settings)
        known.load()
        environ = {each: os.environ[each] for each in McpPlugin.environ if each in os.environ}
        login = login_file(self.settings.data_dir, name)
        return Server(name, settings, known, processes, environ, tasks, login=login)

    def _settings(self, name: str) -> McpServerSettings:
        settings = self.settings.mcp.get(name)
        if settings is None:
            names = ", ".join(self.settings.mcp) or "none"
            raise NotFoundError(f"there is no MCP server {name!r}; the settings have {names}")
        return settings

    def _ask(self, method: str, path: str, kind: Any, key: str, body: Any = None) -> Any:
        return msgspec.convert(call(self.settings, method, f"{_PATH}{path}", body)[key], kind)


def _path(name: str) -> str:
    return f"/{quote(name, safe='')}"


def list_(as_json: AsJson = False, config: File = None) -> None:
    """List the MCP servers with their states and tools.

    \b
    Examples:
      trunkline mcp list
      trunkline mcp list --json
    """
    with one_line_errors():
        statuses = Operator(config).statuses()
    if as_json:
        echo_json(statuses)
        return
    if not statuses:
        typer.echo("The settings have no MCP server.", err=True)
        return
    table = Table("NAME", "STATE", "TOOLS", "WAITING", "SOURCE", "PROBLEM", box=None, pad_edge=False)
    for one in statuses:
        numbers = (str(one.tools), str(one.waiting))
        table.add_row(
            *(Text(plain(each)) for each in (one.name, one.state, *numbers, one.source, one.problem))
        )
    print_table(table)


def add(
    name: Name,
    command: Command = None,
    url: Annotated[
        str | None, typer.Option("--url", help="Address of a remote server.", show_default=False)
    ] = None,
    env: Env = None,
    header: Headers = None,
    read: Annotated[
        Folders,
        typer.Option("--read", metavar="FOLDER", help="Folder it may read; repeatable.", show_default=False),
    ] = None,
    write: Annotated[
        Folders,
        typer.Option(
            "--write", metavar="FOLDER", help="Folder it may read and write; repeatable.", show_default=False
        ),
    ] = None,
    network: Annotated[bool, typer.Option("--network", help="Let the server use the network.")] = False,
    as_json: AsJson = False,
    config: File = None,
) -> None:
    """Add an MCP server to the settings, start it once, and approve the tools that it lists.

    A server that cannot be started is not added; one that needs a login is, with exit status 1.

    \b
    Examples:
      trunkline mcp add time -- mcp-server-time --local-timezone Europe/Berlin
      trunkline mcp add search --url https://mcp.example.org/mcp
      trunkline mcp add search --url https://mcp.example.org/mcp --header 'Authorization=Bearer ${TOKEN}'
      trunkline mcp add notes --write /srv/notes -- node /opt/mcp/filesystem/index.js /srv/notes
    """
    with one_line_errors():
        operator = Operator(config)
        if name in operator.settings.mcp:
            raise SettingsError(f"mcp.{name} exists; change it in {operator.settings.file}")
        values = _values(command or (), url, read or (), write or (), network)
        values |= {key: _pairs(key, given) for key, given in (("env", env), ("headers", header)) if given}
        file = EditedFile(operator.settings.file)
        file.put(("mcp", name), values)
        try:
            operator.settings = load_settings(config)
            tested = operator.test(name)
        except NeedsLogin:
            fail(f"{name} is added, and needs a login: run trunkline mcp login {name}", FAILED)
        except BaseException as error:
            file.restore()
            if isinstance(error, ToolError):
                fail(plain(f"{error}; nothing was changed"))
            raise
        then = operator.refresh(name)
    if as_json:
        echo_json({**msgspec.to_builtins(tested), "next": then})
    else:
        typer.echo(plain(f"{name} is added with {tested.status.tools} tools; {then}"))


def probe(name: Name, as_json: AsJson = False, config: File = None) -> None:
    """Start an MCP server, list its tools and end it; exit with 1 if that fails.

    \b
    Examples:
      trunkline mcp test time
      trunkline mcp test time --json
    """
    with one_line_errors():
        operator = Operator(config)
        tested = operator.test(name)
        operator.refresh(name)
    if as_json:
        echo_json(tested)
        return
    status = tested.status
    typer.echo(f"{name} works: protocol {status.protocol}, {status.tools} tools, {tested.seconds:g} s")
    for each in status.left_out:
        typer.echo(plain(f"  left out: {each}"))
    if status.waiting:
        typer.echo(f"  {status.waiting} tools wait for `trunkline mcp approve {name}`")


def login(
    name: Name,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the browser.")] = True,
    as_json: AsJson = False,
    config: File = None,
) -> None:
    """Log in at a remote MCP server in the browser, and list its tools.

    The browser must be on this machine: it comes back to an address of it.

    \b
    Examples:
      trunkline mcp login search
      trunkline mcp login search --no-browser
    """
    with one_line_errors():
        operator = Operator(config)
        is_known = operator.is_known(name)
        operator.log_in(name, browser=browser)
        tested = operator.test(name)
        effect = operator.refresh(name)
        then = "the next call uses the login" if is_known else effect
    if as_json:
        echo_json({**msgspec.to_builtins(tested), "next": then})
    else:
        typer.echo(plain(f"logged in at {name}, which has {tested.status.tools} tools; {then}"))


def tools(name: Name, as_json: AsJson = False, config: File = None) -> None:
    """List the tools of an MCP server, with the difference of those that wait for an approval.

    \b
    Examples:
      trunkline mcp tools time
      trunkline mcp tools time --json
    """
    with one_line_errors():
        found = Operator(config).tools(name)
    if as_json:
        echo_json(found)
    else:
        for tool in found:
            _show(name, tool)


def approve(
    name: Name,
    tool: Names = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
    config: File = None,
) -> None:
    """Approve changed and new tools of an MCP server as they are now; shows the difference.

    \b
    Examples:
      trunkline mcp approve time
      trunkline mcp approve time get_current_time --yes --json
    """
    with one_line_errors():
        operator = Operator(config)
        waiting = [each for each in operator.tools(name) if each.state in _WAITING]
        chosen = [each for each in waiting if not tool or each.name in tool]
        for each in () if as_json else chosen:
            _show(name, each)
        if chosen and not yes:
            if not sys.stdin.isatty():
                fail("stdin is not a terminal: give --yes")
            if not typer.confirm("Approve this?", err=True):
                fail("nothing was changed", FAILED)
        approved = operator.approve(name, tool or ())
    if as_json:
        echo_json({"name": name, "approved": approved})
    else:
        typer.echo(plain(f"approved: {', '.join(approved) or 'nothing had changed'}"))


def _show(server: str, tool: ToolState) -> None:
    first, name = next(iter(tool.description.splitlines()), ""), model_name(server, tool.name)
    called = "" if name == f"{server}_{tool.name}" else f", for models {name}"
    typer.echo(plain(f"{tool.name} ({tool.state}{called}): {first}"))
    for line in tool.difference.splitlines()[2:]:
        typer.echo(plain(f"  {line}"))


def _pairs(key: str, given: Sequence[str]) -> dict[str, str]:
    """Return what is written as NAME=VALUE. Raises SettingsError."""
    pairs = [each.partition("=") for each in given]
    if any(not name or not equals for name, equals, _ in pairs):
        raise SettingsError(f"--{key.removesuffix('s')} must be NAME=VALUE")
    return {name: value for name, _, value in pairs}


def _values(
    command: Sequence[str],
    url: str | None,
    read: Sequence[Path],
    write: Sequence[Path],
    network: bool,
) -> dict[str, Any]:
    """Return the table of a new server. Raises SettingsError."""
    if read and write:
        raise SettingsError(
            "--read and --write cannot be combined: a server may write in all of its folders or in none"
        )
    values: dict[str, Any] = {"url": url} if url else {}
    if command or not url:
        values["command"] = list(command)
    capabilities: dict[str, Any] = {}
    if read or write:
        roots = [str(folder.expanduser().absolute()) for folder in (*read, *write)]
        capabilities["filesystem"] = {"roots": roots, **({"write": True} if write else {})}
    if network:
        capabilities["network"] = {"enabled": True}
    return {**values, **({"capabilities": capabilities} if capabilities else {})}
