"""``trunkline run``: start the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import structlog
import typer

from gateway.api.owned_files import exists
from gateway.app import Gateway
from gateway.cli.command_group import discard_unwritten
from gateway.cli.discovery import announce, check_announcement
from gateway.cli.doctor import settings as settings_checks
from gateway.cli.doctor.startup import check_model, mask_secrets
from gateway.cli.options import FAILED, INTERRUPTED, File, fail, refuse, settings_from
from gateway.cli.store_reader import check_restored, store_file
from gateway.contract.errors import (
    PluginActivationError,
    SettingsError,
    StoreError,
    StoreUnavailableError,
    TrunklineError,
)
from gateway.extensions.loader import check_siblings
from gateway.logs import set_up_logs
from gateway.server import Server
from gateway.settings import Settings, refresh_organization

if TYPE_CHECKING:
    from gateway.cluster.node import Node

CONNECT = (
    "the built-in demo; for a real model run `trunkline setup`, set ANTHROPIC_API_KEY or OPENAI_API_KEY, "
    "or start an OpenAI-compatible server on port 11434"
)

_SWITCH_SECONDS = 0.0005
_YOUNG_OBJECTS = 50_000
_REFRESH_SECONDS = 3_600
_FINAL = frozenset(
    {
        errno.EACCES,
        errno.EEXIST,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EPERM,
        errno.EROFS,
    }
)
"""Errors of a directory that cannot be created, and that only a mount or a person can cure."""

log = structlog.get_logger("trunkline")


def run(
    config: File = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default=False)] = None,
    port: Annotated[
        int | None, typer.Option(help="TCP port; 0 for any free one.", show_default=False)
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Data directory (database, keys).", show_default=False)
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model, as provider/name.", show_default=False)] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the web chat in the browser.")] = False,
) -> None:
    """Run the gateway until Ctrl-C or SIGTERM.

    Exit status: 0 after a stop, or the status that a plugin requested; 2 when a setting is wrong, a plugin
    cannot be loaded or the data directory cannot be created, so that a restart fails too; 70 when the store
    failed while running; 75 when the store was not reachable or writable for `store.wait_ms`, the listen
    address is in use, or a plugin failed to activate.

    \b
    Examples:
      trunkline run --open
      trunkline run --port 0 --data-dir /tmp/try
      trunkline run --model openai/gpt-5.4-mini
    """
    flags: dict[str, Any] = {
        "server": {"host": host, "port": port},
        "data_dir": None if data_dir is None else str(data_dir),
        "model": model,
    }
    try:
        status = _serve(settings_from(config, flags), open_browser)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        _explain(error)
        raise
    finally:
        discard_unwritten()
    raise typer.Exit(status)


def _serve(settings: Settings, open_browser: bool) -> int:
    _tune_switch_interval()
    try:
        import uvloop
    except ImportError:
        return asyncio.run(serve(settings, open_browser=open_browser))
    return uvloop.run(serve(settings, open_browser=open_browser))


async def serve(settings: Settings, *, open_browser: bool = False) -> int:
    """Run a gateway with its server until it stops. Return the exit status.

    A node of a cluster that is drained stands by again, and may run another gateway later.
    """
    _create_folders(settings)
    check_restored(settings)
    cluster = settings.cluster
    node_name = None if cluster.url is None else cluster.node
    set_up_logs(settings.log, cluster.log_folder(settings.data_dir), node_name)
    check_siblings()
    check_announcement(settings)
    stop = asyncio.Event()
    _handle_signals(stop)
    gateway = _gateway(settings, stop)
    try:
        async with contextlib.AsyncExitStack() as stack:
            node = None if settings.cluster.url is None else await _join(settings, stop, stack)
            await _run(gateway, node, open_browser=open_browser)
            while node is not None and not stop.is_set():
                await node.hand_over()
                # Else the objects of the gateway that has ended would stay.
                gc.unfreeze()
                gateway = _gateway(settings, stop)
                await _run(gateway, node)
    except StoreUnavailableError:
        if not stop.is_set():
            raise
        # Stopped while it waited for the store: a normal stop.
    return gateway.exit_code


def _create_folders(settings: Settings) -> None:
    """Create the directories of the data and of the database. Raises SettingsError if a retry cannot help."""
    file = store_file(settings)
    folders = {"data_dir": settings.data_dir.absolute()}
    if file is not None and settings.store.url is not None:
        folders["store.url"] = file.absolute().parent
    for key, folder in folders.items():
        try:
            folder.mkdir(0o700, parents=True, exist_ok=True)
            # A database that is there may be a copy that is read-only until it takes over.
            if file is not None and file.absolute().parent == folder and not exists(file):
                tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            if error.errno not in _FINAL or _may_be_mounted(folder):
                continue  # the store waits, and reports it
            advice = "choose another directory"
            if error.errno in (errno.EACCES, errno.EPERM):
                advice += ", or let this user write there"
            raise SettingsError(f"{key}: cannot write in {folder}: {error.strerror}; {advice}") from None


def _may_be_mounted(folder: Path) -> bool:
    """Return whether a mount may still bring a directory: what exists of its path ends with an empty one."""
    path = Path(os.path.realpath(folder))
    there = next(each for each in (path, *path.parents) if os.path.exists(each))  # noqa: PTH110 - Path raises for a directory that cannot be entered
    try:
        return not any(there.iterdir())
    except OSError:
        return False


def _gateway(settings: Settings, stop: asyncio.Event) -> Gateway:
    gateway = Gateway(settings, environ=os.environ)
    gateway.stop = stop
    return gateway


async def _run(gateway: Gateway, node: Node | None, *, open_browser: bool = False) -> None:
    """Run one gateway: in a cluster, from the time that this node owns it until it is drained."""
    if node is not None:
        _print(f"Trunkline stands by: {node.url}  (node {node.name}, passes clients on)")
        gateway.fence, gateway.nodes = await node.own(), node.programs
        if gateway.fence is None:
            return
    settings = gateway.settings
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(gateway.running())
        bound = None if node is None else node.stand_aside()
        server = await stack.enter_async_context(Server(gateway, bound=bound))
        if node is not None:
            await stack.enter_async_context(node.serving(server.accept))
        _tune_gc()
        _welcome(gateway, server.url)
        if open_browser:
            await asyncio.to_thread(_show_page, server.url)
        await gateway.stand_by()
        async with asyncio.TaskGroup() as tasks:
            looking = tasks.create_task(_warn(gateway))
            background = [looking, tasks.create_task(_refresh(settings))]
            if settings.server.announce:
                background.append(tasks.create_task(announce(settings, server.url)))
            ends = [tasks.create_task(gateway.stop.wait())]
            if node is not None:
                ends.append(tasks.create_task(node.drained.wait()))
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for task in (*background, *ends):
                task.cancel()


async def _join(settings: Settings, stop: asyncio.Event, stack: contextlib.AsyncExitStack) -> Node:
    """Join the cluster until the stack ends."""
    try:
        # Imported here: its library is an extra, and takes 0.1 s of a start without a cluster.
        from gateway.cluster.node import Node
    except ModuleNotFoundError as error:
        if error.name != "aio_pika":
            raise
        raise SettingsError(
            "cluster.url is set, but RabbitMQ's client is not installed: pip install 'trunkline[cluster]'"
        ) from None
    node = Node(settings, stop)
    await stack.enter_async_context(node.joined())
    return node


def _handle_signals(stop: asyncio.Event) -> None:
    """Stop in order at the first signal, and at once at a second Ctrl-C: acknowledged messages are stored."""

    def interrupted() -> None:
        if stop.is_set():
            os._exit(INTERRUPTED)
        # Set before printing: a closed terminal makes the print fail.
        stop.set()
        _print("\nStopping; running answers may finish. Ctrl-C again stops at once.", err=True)

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    # A terminal that is closed sends it; `nohup` ignores it.
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        loop.add_signal_handler(signal.SIGHUP, stop.set)
    loop.add_signal_handler(signal.SIGINT, interrupted)


def _welcome(gateway: Gateway, url: str) -> None:
    """Print the address, the model, the data directory, the sources of the settings and how to stop."""
    lines = [
        f"Trunkline is ready: {url}  (model {gateway.model})",
        f"  chat   open {url} in a browser, or run: trunkline chat",
        f"  model  {CONNECT}" if gateway.model.startswith("demo/") else "",
        f"  data   {gateway.settings.data_dir.absolute()}",
        f"  config {_sources(gateway.settings)}",
        "  stop   Ctrl-C",
    ]
    _print("\n".join(filter(None, lines)))


def _sources(settings: Settings) -> str:
    """Return the sources of the settings in effect, the operator's file first."""
    found = [
        (source.layer == "operator", f"{source.name} ({source.layer})") for source in settings.origin.sources
    ]
    operator = next((name for own, name in found if own), "no config/trunkline.toml")
    others = ", ".join(name for own, name in found if not own)
    return f"{operator}; also {others}" if others else operator


async def _refresh(settings: Settings) -> None:
    """Refresh the copy of the organization's file every hour, for the next start."""
    while settings.origin.remote is not None:
        message = await refresh_organization(settings)
        if message:
            log.warning("settings of the organization", detail=message)
        await asyncio.sleep(_REFRESH_SECONDS)


async def _warn(gateway: Gateway) -> None:
    """Print the warnings of the doctor below the banner: skipped parts, unknown models, rejected keys."""

    found = list(settings_checks.skipped(gateway))
    if not gateway.model.startswith("demo/"):  # the banner says so
        with contextlib.suppress(TrunklineError):  # the first message shows it
            found.append(await check_model(gateway))
    for each in mask_secrets(found, gateway.settings):
        if each.status != "ok":
            _print(f"  {each.status:<6} {each.name}: {each.detail}\n         → {each.advice}", err=True)


def _show_page(url: str) -> None:
    import webbrowser  # takes 60 KiB, and few gateways open a page

    if not webbrowser.open(url):
        _print(f"Cannot open a browser; the chat is at {url}", err=True)


def _print(text: str, *, err: bool = False) -> None:
    """Print, and ignore a closed terminal or pipe: the gateway serves and stops without one."""
    with contextlib.suppress(OSError, ValueError):
        typer.echo(text, err=err)


def _explain(error: Exception) -> None:
    """End with one line if every error is a TrunklineError; others are bugs and keep their traceback."""

    named = [leaf for leaf in _leaves(error) if isinstance(leaf, TrunklineError)]
    if len(named) != len(list(_leaves(error))):
        return
    kinds = SettingsError | StoreError | PluginActivationError
    refusals = [leaf for leaf in named if isinstance(leaf, kinds)]
    for refusal in sorted(refusals, key=lambda leaf: leaf.retryable):
        refuse(refusal)
    fail("\n".join(f"{leaf.name}: {leaf}" for leaf in named), FAILED)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors inside the groups that task groups raise."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        for part in group.exceptions:
            yield from _leaves(part)
    else:
        yield error


def _tune_switch_interval() -> None:
    """Shorten the interval after which a busy event loop yields the interpreter to the store's thread."""
    # SQLite's driver releases the interpreter lock for each row and has to win it back: with the default of 5
    # ms a saturated event loop leaves the writer a fraction of the turns per second that it can commit.
    sys.setswitchinterval(_SWITCH_SECONDS)


def _tune_gc() -> None:
    """Exclude objects of the start from garbage collection, and collect less often."""
    # Conversations are long-lived and hold no cycles; scanning them every 700 allocations costs a fifth of a
    # turn.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, 20, 50)
