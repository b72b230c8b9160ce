"""``trunkline plugin dev | test``: for authors of plugins, with the plugin confined as users run it."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import Annotated, Any

import msgspec
import typer
from msgspec import Struct

from gateway.app import Gateway
from gateway.cli.options import FAILED, AsJson, File, fail_without_testing, to_json
from gateway.cli.output import echo_json, plain
from gateway.cli.plugins.authoring import Folder
from gateway.cli.plugins.operator import Allow, Operator, Yes, one_line_errors
from gateway.cli.plugins.tracing import line_of
from gateway.contract.errors import TrunklineError
from gateway.extensions.admission.admission import Admission
from gateway.extensions.admission.consent import added
from gateway.extensions.admission.manifest import Manifest, read_manifest
from gateway.extensions.admission.packages.installer import Installer
from gateway.extensions.confined.events import EVENTS
from gateway.extensions.process.records import HasProcess
from gateway.logs import set_up_logs
from gateway.server import Server
from gateway.settings import Settings, load_settings

_POLL_SECONDS = 0.3

Port = Annotated[int, typer.Option("--port", help="Port of the web chat; 0 for any free one.")]


def run_tests(
    folder: Folder,
    tests: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ARGUMENT]...", help="Arguments for pytest.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run the tests in a plugin's folder with pytest; the plugin is confined in them.

    The tests use gateway.testing and run with your rights. The extra `testing` installs what they need.

    \b
    Examples:
      trunkline plugin test ./weather
      trunkline plugin test ./weather -- -k forecast
    """
    for module in ("gateway.testing", "pytest", "pytest_asyncio"):
        if importlib.util.find_spec(module) is None:
            fail_without_testing(module)
    with one_line_errors():
        manifest = read_manifest(folder)
    quiet = ("-q", "-p", "no:cacheprovider", "--asyncio-mode=auto", "--import-mode=importlib")
    quiet += ("-o", "asyncio_default_fixture_loop_scope=function")  # without it pytest-asyncio warns
    command = [sys.executable, "-m", "pytest", *quiet, f"--rootdir={folder}", str(folder), *(tests or ())]
    # No bytecode: a folder with some is refused. The gateway's modules may be those of a checkout.
    paths = os.pathsep.join(filter(None, (str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH"))))
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": paths}
    done = subprocess.run(command, env=environ, capture_output=as_json, text=True, check=False)  # noqa: S603
    if as_json:
        passed = done.returncode == 0
        echo_json({"name": manifest.name, "passed": passed, "output": done.stdout + done.stderr})
    if done.returncode:
        raise typer.Exit(FAILED)


def dev(
    folder: Folder,
    port: Port = 0,
    allow: Allow = None,
    yes: Yes = False,
    as_json: AsJson = False,
    config: File = None,
) -> None:
    """Run a separate gateway with a plugin, reload the plugin at each save, and print what it does.

    Prints the events of the gateway, what the plugin writes to stderr, and what it was denied. The gateway
    has a web chat, and a new database that is deleted at the end. Its model is that of the variables of the
    environment, or the built-in demo. Capabilities that a save adds are asked for in the chat.

    \b
    Examples:
      trunkline plugin dev ./weather
      trunkline plugin dev ./weather --yes --allow network --port 8081
    """
    if importlib.util.find_spec("watchfiles") is None:
        fail_without_testing("watchfiles")
    with one_line_errors(), tempfile.TemporaryDirectory(prefix="trunkline-dev-") as place:
        operator = Operator(config)
        manifest = read_manifest(folder)
        declared = tuple(manifest.capabilities.grants())
        question = "Run it and grant this?"
        grants = operator.consent(manifest, folder, declared, allow=allow or (), yes=yes, question=question)
        own = operator.settings.plugins.of(str(folder), manifest.name).model_dump(exclude_unset=True)
        session = _Session(folder.absolute(), manifest, operator.name, as_json)
        settings = session.settings(Path(place), port, own)
        session.approve(settings, grants)
        asyncio.run(session.run(settings))


class _Told(Struct, frozen=True):
    """A line of the output: ``kind`` is ready, changed, failed, event, stderr or action."""

    kind: str
    text: str
    about: Any = None


class _Session:
    """A gateway with the plugin in a folder, until Ctrl-C."""

    def __init__(self, folder: Path, manifest: Manifest, by: str, as_json: bool) -> None:
        self._folder = folder
        self._entry = str(folder)
        self._manifest = manifest
        self._by = by
        self._as_json = as_json

    def settings(self, place: Path, port: int, own: dict[str, Any]) -> Settings:
        """Return settings in a new folder: this plugin alone. ``own`` are those of the plugin."""
        file = place / "trunkline.json"
        table = {**own, "optional": True}
        written = {"log": {"level": "error"}, "plugins": {self._manifest.name: table}}
        file.write_text(json.dumps(written, default=str), encoding="utf-8")
        flags = {
            "data_dir": str(place / "data"),
            "server": {"port": port, "host": "127.0.0.1"},
            "plugins": {"enabled": [self._entry]},
        }
        return load_settings(file, flags=flags)

    def approve(self, settings: Settings, grants: tuple[str, ...] = ()) -> Manifest:
        """Approve the present content, with further grants."""
        return Installer(Admission(settings), os.environ).approve(self._entry, grants, self._by)

    async def run(self, settings: Settings) -> None:
        """Run the gateway and reload the plugin until Ctrl-C."""
        set_up_logs(settings.log, settings.cluster.log_folder(settings.data_dir))
        gateway = Gateway(settings, environ=os.environ)
        loop = asyncio.get_running_loop()
        for number in (SIGINT, SIGTERM):
            loop.add_signal_handler(number, gateway.stop.set)
        async with gateway.running(), Server(gateway) as server, self._watching(gateway):
            if reason := gateway.activator.failed.get(self._entry):
                self._tell("failed", reason)
            self._tell("ready", f"{server.url} (model {gateway.model}); Ctrl-C stops it")
            await self._reload(gateway, settings)

    async def _reload(self, gateway: Gateway, settings: Settings) -> None:
        # A dependency of this command alone.
        from watchfiles import awatch  # pyright: ignore[reportUnknownVariableType]

        async for _ in awatch(self._folder, stop_event=gateway.stop, step=50, debounce=500):
            try:
                manifest = await asyncio.to_thread(self.approve, settings)
                change = await gateway.live_plugins.apply(self._entry)
            except TrunklineError as error:
                self._tell("failed", f"the previous version keeps running: {error}")
                continue
            if change.outcome != "unchanged":
                self._tell("changed", f"{change.name} {change.version} {change.outcome}")
            for grant in added(manifest, {*self._manifest.capabilities.grants()}):
                self._tell("changed", f"{grant} is new: the chat asks for it when it is needed")
            self._manifest = manifest

    @asynccontextmanager
    async def _watching(self, gateway: Gateway) -> AsyncGenerator[None]:
        """Print what happens within the block."""
        removes = [gateway.events.subscribe(kind, self._tell_event) for kind in {*EVENTS.values()}]
        async with asyncio.TaskGroup() as tasks:
            telling = tasks.create_task(self._tell_plugin(gateway))
            try:
                yield
            finally:
                telling.cancel()
                for remove in removes:
                    remove()

    async def _tell_plugin(self, gateway: Gateway) -> None:
        """Print what the plugin writes to stderr, its starts and deaths, and what it was denied."""
        end, after = 0, ""
        while True:
            plugin = gateway.activator.find(self._entry)
            if isinstance(plugin, HasProcess):
                text, end = plugin.process.record.stderr(end)
                for line in text.decode(errors="replace").splitlines():
                    self._tell("stderr", line)
            actions = gateway.parts.actions
            await actions.flush()
            for action in await actions.latest(self._manifest.name, after):
                after = action.id
                if not action.allowed or action.action.startswith("process."):
                    self._tell("action", line_of(action), action)
            await asyncio.sleep(_POLL_SECONDS)

    def _tell_event(self, event: Struct) -> None:
        about: dict[str, Any] = msgspec.to_builtins(event, enc_hook=repr)
        name = about.pop("name")
        shown = " ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in about.items())
        self._tell("event", f"{name} {shown}"[:500], {"name": name, **about})

    def _tell(self, kind: str, text: str, about: Any = None) -> None:
        if self._as_json:
            typer.echo(to_json(msgspec.to_builtins(_Told(kind, text, about)), None))
        else:
            typer.echo(f"{datetime.now().astimezone():%H:%M:%S}  {kind:<8}{plain(text)}")
        sys.stdout.flush()
