"""``trunkline setup``: the first setup of a model, a chat platform, its admin and a service.

Each step writes its part of the settings file after a test. A flag answers each question, for scripts.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.access import THE_OWNER
from gateway.api.owned_files import keep_owner
from gateway.app import Gateway
from gateway.cli.gateway_client import running_gateway
from gateway.cli.models.auth import check_credential, sign_in
from gateway.cli.models.provider_info import idle_gateway
from gateway.cli.options import REFUSED, File, fail, refuse
from gateway.cli.output import quiet
from gateway.contract.errors import (
    ModelNotFoundError,
    NotFoundError,
    SettingsError,
    TooManyRequestsError,
    TrunklineError,
)
from gateway.extensions.loader import channel_options
from gateway.models.credentials import CredentialStore
from gateway.models.providers import default_model
from gateway.settings import Settings, load_settings
from gateway.settings.layers.editing import EditedFile
from gateway.settings.secrets import sounds_secret

ProviderId = Annotated[
    str | None, typer.Option(help="Model provider, such as anthropic.", show_default=False)
]
KeyStdin = Annotated[bool, typer.Option("--key-stdin", help="Read the provider's key from standard input.")]
Model = Annotated[
    str | None, typer.Option(help="Model, provider/name. Unset: the provider's default.", show_default=False)
]
ChannelName = Annotated[
    str | None,
    typer.Option(help="Chat platform: telegram, discord, slack, email or matrix.", show_default=False),
]
Values = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Setting of the channel, such as token=123:AA…; repeatable.",
        show_default=False,
    ),
]
AdminId = Annotated[
    str | None, typer.Option(help="Your user id on the platform; makes you admin.", show_default=False)
]
Service = Annotated[
    bool | None,
    typer.Option("--service/--no-service", help="Install a systemd user service.", show_default=False),
]
Check = Annotated[bool, typer.Option(help="Test the key and the tokens before they are stored.")]


def setup(
    provider: ProviderId = None,
    key_stdin: KeyStdin = False,
    model: Model = None,
    channel: ChannelName = None,
    options: Values = None,
    admin_id: AdminId = None,
    service: Service = None,
    check: Check = True,
    config: File = None,
) -> None:
    """Set up a model, a chat platform, your own access and a service, step by step.

    At a terminal it asks for each value that no flag gives. The key of a provider is stored in the keyring or
    the data directory, the token of a platform in the data directory; the settings file refers to them.

    \b
    Examples:
      trunkline setup
      trunkline setup --provider openai --key-stdin < key.txt
      trunkline setup --channel telegram --set token=123:AA… --admin-id 123456789 --no-service
    """

    asks = sys.stdin.isatty() and not key_stdin
    if not asks and not (provider or model or channel or service):
        fail("stdin is not a terminal: give flags, see `trunkline setup --help`", REFUSED)
    try:
        first = FirstSetup(config, asks=asks, check=check)
        first.provider(provider, from_stdin=key_stdin)
        first.model(model)
        first.channel(channel, _pairs(options or ()), admin_id)
        first.service(service)
    except SettingsError as error:
        refuse(error)
    except TrunklineError as error:
        fail(str(error))
    except (EOFError, KeyboardInterrupt):
        raise typer.Abort from None
    typer.echo(f"Settings: {first.file.path}")
    typer.echo(
        "Start the gateway: trunkline run" if not first.has_service else "The gateway runs as a service."
    )


def _pairs(given: Sequence[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for item in given:
        key, sign, value = item.partition("=")
        if not sign or not key:
            fail("--set takes KEY=VALUE, such as token=123:AA…", REFUSED)
        pairs[key] = value
    return pairs


_CONNECT_SECONDS = 20.0
_STABLE_POLLS = 30
"""Polls in a row, 0.1 s apart, that must report the same problem before setup gives up."""
_UNIT = "trunkline.service"


class ChannelNotConnectedError(TrunklineError):
    """The channel cannot connect to its platform with the given settings."""


class FirstSetup:
    """The steps of the setup. ``asks`` allows questions at the terminal; ``check`` tests keys and tokens."""

    def __init__(self, config: Path | None, *, asks: bool, check: bool) -> None:
        self.file = EditedFile(config or Path(os.environ.get("TRUNKLINE_CONFIG", "config/trunkline.toml")))
        self.has_service = False
        self._config = config
        self._asks = asks
        self._check = check
        self._secrets: list[Path] = []
        """The files with secrets that this setup wrote."""

    def provider(self, given: str | None, *, from_stdin: bool) -> None:
        """Choose the model provider, test its key and store it."""
        settings = self._settings()
        name = given
        if name is None and self._asks:
            typer.echo("A model answers the messages. Without one, the built-in demo does.")
            name = typer.prompt(
                "Model provider (anthropic, openai, google …; Enter to skip)", "", show_default=False
            )
        if not name:
            return
        done = sign_in(settings, name, typer.echo, from_stdin=from_stdin)
        owner, credential = done.owner, done.credential
        if credential is None:
            typer.echo(f"Signed in to {name}; its program stores the login")
            return
        typer.echo(
            check_credential(settings, owner, credential)
            if self._check
            else f"The key of {owner} was not tested"
        )
        typer.echo(f"Key of {owner} stored in {CredentialStore(settings.data_dir).save(owner, credential)}")

    def model(self, given: str | None) -> None:
        """Choose the model. Without one the gateway uses the default of the first provider with a key."""
        proposed = asyncio.run(self._first_model())
        model = given
        if model is None and self._asks and not proposed.startswith("demo/"):
            model = typer.prompt("Model", proposed)
        if model is None or model == proposed:
            typer.echo(f"Model: {proposed}")
            return
        if self._check:
            asyncio.run(self._resolve(model))
        self.file.put((), {"model": model})
        typer.echo(f"Model: {model}")

    def channel(self, given: str | None, options: Mapping[str, str], admin_id: str | None) -> None:
        """Connect a chat platform and pair its admin."""
        known = platforms()
        name = given
        if name is None and self._asks:
            name = typer.prompt(f"Chat platform ({', '.join(known)}; Enter to skip)", "", show_default=False)
        if not name:
            if options or admin_id:
                raise SettingsError("--set and --admin-id need --channel")
            return
        if name not in known:
            raise SettingsError(f"channel {name!r} does not exist; choose one of {', '.join(known)}")
        if name in self._settings().channels:
            raise SettingsError(f"[channels.{name}] is in the settings already; edit {self.file.path}")
        values = self._values(name, known[name](options), options)
        if admin_id:
            values |= {"allow": [admin_id], "admins": [admin_id]}
        self.file.put(("channels", name), values)
        try:
            channel_options(self._settings(), name)
            if self._check:
                asyncio.run(self._connect(name, pair=self._asks and not admin_id))
        except BaseException:
            self.file.drop(("channels", name))
            for secret in self._secrets:
                secret.unlink()
            raise

    def service(self, given: bool | None) -> None:
        """Install and start a systemd user service."""
        if shutil.which("systemctl") is None:
            if given:
                raise SettingsError("--service needs systemd, but systemctl is not installed")
            return
        if given is None and self._asks:
            given = typer.confirm("Install a systemd user service that starts the gateway", default=False)
        if not given:
            return
        home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        unit = home / "systemd/user" / _UNIT
        unit.parent.mkdir(parents=True, exist_ok=True)
        unit.write_text(_unit(self._config), encoding="utf-8")
        typer.echo(f"Service written to {unit}")
        commands = [
            ["systemctl", "--user", "daemon-reload"],
            ["systemctl", "--user", "enable", "--now", _UNIT],
        ]
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - fixed words
            if done.returncode:
                shell_line = " && ".join(" ".join(command) for command in commands)
                typer.secho(
                    f"Cannot start the service: {done.stderr.strip()}", fg=typer.colors.YELLOW, err=True
                )
                typer.echo(f"Start it yourself: {shell_line}")
                return
        self.has_service = True

    def _settings(self) -> Settings:
        return load_settings(self._config)

    async def _first_model(self) -> str:
        settings = self._settings()
        if settings.model:
            return settings.model
        async with idle_gateway(settings, os.environ) as gateway:
            return await default_model(os.environ, gateway.providers)

    async def _resolve(self, model: str) -> None:
        async with idle_gateway(self._settings(), os.environ) as gateway:
            route = await gateway.models.resolve(model)
            listed = [info.id for info in await route.provider.list_models()]
        if listed and route.model not in listed:
            near = ", ".join(listed[:5])
            raise ModelNotFoundError(
                f"{model} is not one of the {len(listed)} models of its provider: {near}, …"
            )

    def _values(self, name: str, asked: Mapping[str, str], given: Mapping[str, str]) -> dict[str, Any]:
        """Return the settings of the channel; secrets are written to files that the settings refer to."""
        values: dict[str, Any] = dict(given)
        for key, how in asked.items():
            if not self._asks:
                raise SettingsError(f"--channel {name} needs --set {key}=… ({how})")
            typer.echo(how)
            values[key] = typer.prompt(key, hide_input=sounds_secret(key)).strip()
        folder = self._settings().data_dir.absolute()
        for key, value in values.items():
            if sounds_secret(key) and not value.startswith(("${", "{env:", "{file:")):
                secret = _write_secret(folder, f"secret-{name}-{key}", value)
                self._secrets.append(secret)
                values[key] = f"{{file:{secret}}}"
        return values

    async def _connect(self, name: str, *, pair: bool) -> None:
        """Start only the channel, wait until it is connected, and pair its admin."""
        settings = self._settings()
        if running_gateway(settings) is not None:
            typer.echo(
                f"A gateway is running, so {name} was not tested; restart the gateway to start the channel."
            )
            return
        with quiet():
            async with _gateway_with_only(settings, name) as gateway:
                problem = await _connection_problem(gateway, name)
                if problem is None:
                    typer.echo(f"{name} is connected.")
                    if pair:
                        await _pair(gateway, name)
        # Raised outside of the gateway, whose task group would wrap it.
        if problem is not None:
            raise ChannelNotConnectedError(
                f"{name} does not connect with these settings, so they were not stored: {problem}"
            )


Questions = Callable[[Mapping[str, str]], Mapping[str, str]]
"""Takes the given settings; returns the missing ones, each with the place where users find its value."""


def platforms() -> dict[str, Questions]:
    """Return the channels that setup supports: those whose ``Options`` have ``questions``."""
    spec = find_spec("channels")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    names = sorted(path.parent.name for folder in folders for path in folder.glob("*/options.py"))
    asked = {name: getattr(import_module(f"channels.{name}").Options, "questions", None) for name in names}
    return {name: questions for name, questions in asked.items() if questions is not None}


def _write_secret(folder: Path, name: str, secret: str) -> Path:
    """Write a secret to its own file in the data directory, which `trunkline backup` includes."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / name
    with os.fdopen(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8"
    ) as file:
        keep_owner(file.fileno(), folder)
        file.write(f"{secret}\n")
    return path


@asynccontextmanager
async def _gateway_with_only(settings: Settings, name: str) -> AsyncGenerator[Gateway]:
    """Run a gateway with only this channel and without a server."""
    only = settings.model_copy(update={"channels": {name: settings.channels[name]}})
    gateway = Gateway(only, environ=os.environ)
    async with gateway.running():
        yield gateway


async def _connection_problem(gateway: Gateway, name: str) -> str | None:
    """Wait until the channel is connected and return None, or return the reason why it is not."""
    if name in gateway.left_out:
        return gateway.left_out[name]
    (supervisor,) = (one for one in gateway.supervisors if one.channel.id == name)
    problem, polls = "", 0
    for _ in range(round(_CONNECT_SECONDS * 10)):
        health = supervisor.health()
        if health.ok:
            return None
        polls = polls + 1 if health.detail == problem != "starting" else 0
        problem = health.detail
        if polls >= _STABLE_POLLS:
            break
        await asyncio.sleep(0.1)
    return problem


async def _pair(gateway: Gateway, name: str) -> None:
    """Pair the user at the terminal as admin, with the code that the bot replies."""
    typer.echo("Now send a private message to your bot. It replies with a code.")
    while code := await _ask("Code (Enter to skip)"):
        try:
            member = await gateway.parts.access.pairing.approve(code, THE_OWNER, "admin", "admin")
        except (NotFoundError, TooManyRequestsError) as error:
            typer.secho(str(error), fg=typer.colors.YELLOW, err=True)
        else:
            typer.echo(f"You are an admin on {name}: {member.user_id}")
            return


async def _ask(question: str) -> str:
    """Ask at the terminal while the gateway runs. Ctrl-C could not end a thread that reads."""
    typer.echo(f"{question}: ", nl=False)
    loop, typed = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin, typed.set)
    try:
        await typed.wait()
    finally:
        loop.remove_reader(sys.stdin)
    return sys.stdin.readline().strip()


def _unit(config: Path | None) -> str:
    """Return the unit of a user service, with the restart rule of config/trunkline.service.

    Coding agents outlive the gateway, so only its own process is killed, and they get cgroups beside its own
    for their limits (systemd 254; older ones ignore that). Confined plugins end with the gateway anyway.
    """
    command = [sys.executable, "-m", "gateway", "run"]
    command += [] if config is None else ["--config", str(config.absolute())]
    started = " ".join(f'"{word}"' for word in command).replace("%", "%%")
    return f"""[Unit]
Description=Trunkline, a chat bot gateway
StartLimitIntervalSec=0

[Service]
WorkingDirectory={str(Path.cwd()).replace("%", "%%")}
ExecStart={started}
Environment=PYTHONUNBUFFERED=1
Restart=always
RestartSec=1
RestartSteps=6
RestartMaxDelaySec=30
RestartPreventExitStatus=2
TimeoutStopSec=30
KillMode=process
OOMPolicy=continue
Delegate=yes
DelegateSubgroup=gateway

[Install]
WantedBy=default.target
"""
