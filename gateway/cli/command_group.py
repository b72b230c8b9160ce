"""A command group that imports the module of a command only when that command runs or shows its help.

Most commands need the gateway, a database library or rich, which take up to a second to import. The table of
names and short help texts is enough for ``trunkline --help``, for the help of a group and for completion.
"""

from __future__ import annotations

import codecs
import errno
import gc
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from io import TextIOWrapper
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO, cast

import typer
from typer.core import CompletionItem, TyperGroup  # pyright: ignore[reportPrivateImportUsage]
from typer.main import get_command


class Command:
    """A function that is a command: ``target`` is its module and name, ``help`` its first sentence."""

    def __init__(self, target: str, help: str, **context_settings: Any) -> None:
        self.target = target
        self.help = help
        self._context_settings = context_settings or None

    def load(self, name: str) -> Any:
        """Import the module and return the command."""
        module, _, function = self.target.partition(":")
        alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        alone.command(name, context_settings=self._context_settings)(
            getattr(_import(f"gateway.cli.{module}"), function)
        )
        return get_command(alone)


def _import(name: str) -> ModuleType:
    """Import the module of a command."""
    if name in sys.modules:
        return sys.modules[name]
    # Imports leave hardly any garbage, and looking for it would take a tenth of the time to start.
    gc.disable()
    try:
        _import_structlog()
        # Its default is the standard output, which may be JSON for a program.
        structlog = import_module("structlog")
        structlog.configure(logger_factory=partial(_error_logger, structlog.PrintLogger))
        return import_module(name)
    finally:
        gc.freeze()
        gc.enable()


def _error_logger(logger: Callable[[TextIO], object], *_args: object) -> object:
    return logger(sys.stderr)


def _import_structlog() -> None:
    """Import structlog without rich, which it would load for tracebacks that the gateway does not use.

    That would take 50 ms and 3 MB. Only this import does not find rich.
    """
    if "structlog" in sys.modules or "rich" in sys.modules:
        return
    absent = cast("dict[str, ModuleType | None]", sys.modules)
    absent["rich"] = None
    try:
        import_module("structlog")
    finally:
        del absent["rich"]


class Group:
    """Commands below a common name. The group without a command is its ``default``."""

    def __init__(self, help: str, commands: Mapping[str, Entry], default: str | None = None) -> None:
        self.help = help
        self.commands = commands
        self._default = default

    def load(self, name: str) -> Any:
        """Return the group; its commands are imported later."""
        return LazyGroup(
            self.commands,
            self._default,
            name=name,
            help=self.help,
            no_args_is_help=self._default is None,
            rich_markup_mode=None,
        )


Entry = Command | Group


class _LoadedOnAccess(MutableMapping[str, Any]):
    """The commands of a group by name; reading one imports it."""

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self._entries = entries
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = self._entries[name].load(name)
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


class LazyGroup(TyperGroup):
    """A group that lists its commands from a table."""

    def __init__(self, entries: Mapping[str, Entry], default: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._entries = entries
        self._default = default
        self.commands = _LoadedOnAccess(entries)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the default command before options that are not those of the group."""
        names_one = args[:1] == ["--help"] or (args and args[0][:1] != "-")
        # A completion is that of the group: its commands.
        if self._default is not None and not names_one and not ctx.resilient_parsing:
            args = [self._default, *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of the table."""
        return list(self._entries)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the names with their short help."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in self._entries.items()])

    def shell_complete(self, ctx: Any, incomplete: str) -> list[CompletionItem]:
        """Return the commands and options that begin with the typed text."""
        names = [name for name in self._entries if name.startswith(incomplete)]
        options = super(TyperGroup, self).shell_complete(ctx, incomplete)
        return [*(CompletionItem(name, help=self._entries[name].help) for name in names), *options]


Report = Callable[[str, str, bool], None]
"""Reports a command that ended: its name, its arguments, and whether it succeeded."""

_reports: ContextVar[dict[str, Report]] = ContextVar("reports")


def report_to(address: str, report: Report) -> None:
    """Report the present command at its end to the gateway at an address, whose API it has used."""
    _reports.get({})[address] = report


def discard_unwritten() -> OSError | None:
    """Discard what the output did not take, and return why; Python would end with the status 120."""
    failure: OSError | None = None
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            failure = error
    return failure


def _lost_output(error: BaseException) -> OSError | None:
    """Return the error of an output that was not written, which task groups may raise in groups."""
    if isinstance(error, BaseExceptionGroup):
        leaves = cast("BaseExceptionGroup[BaseException]", error).exceptions
        return next(filter(None, map(_lost_output, leaves)), None)
    if not isinstance(error, OSError) or error.filename is not None:
        return None
    return error if error.errno in (errno.EPIPE, errno.ENOSPC) else None


_AS_ASCII = "trunkline-as-ascii"
_ASCII = {"→": "->", "…": "...", "\u2013": "-", "—": "-", "·": "-", "•": "*", "✓": "+", "✗": "x"}
"""Replacements for signs in the texts of commands, for a terminal without Unicode."""


def _as_ascii(error: UnicodeError) -> tuple[str | bytes, int]:
    """Replace the first character that an encoding lacks: by ASCII, or else by its number."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    character = error.object[error.start]
    escaped = character.encode("ascii", "backslashreplace").decode()
    return _ASCII.get(character, escaped), error.start + 1


AS_ITS_USER = "run the command as the user of the gateway, for example with sudo"


def cannot_access(error: PermissionError) -> str:
    """Return what this user may not read or write."""
    return f"cannot access {error.filename}: {error.strerror}"


class ReportedGroup(LazyGroup):
    """The root of all commands. Reports each one that used the API of a gateway to that gateway."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Run the command line. An output that cannot be written, such as on a full disk, ends it with 1."""
        if "_TRUNKLINE_COMPLETE" in os.environ:
            # typer breaks the help of a completion into lines; fish takes each for a further completion.
            os.environ["TERMINAL_WIDTH"] = "1000"
        if sys.stdin is None:  # closed by the program that started this one
            sys.stdin = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115
        # Else bytes that are not text, or a character that the encoding lacks, would end the command.
        codecs.register_error(_AS_ASCII, _as_ascii)
        for stream, errors in (
            (sys.stdin, "surrogateescape"),
            (sys.stdout, _AS_ASCII),
            (sys.stderr, _AS_ASCII),
        ):
            if isinstance(stream, TextIOWrapper):
                cast("TextIOWrapper", stream).reconfigure(errors=errors)
        try:
            return super().main(*args, **options)
        except (OSError, SystemExit, BaseExceptionGroup) as end:
            # Nothing is left to write if Python does not buffer.
            failure = discard_unwritten() or _lost_output(end)
            if failure is None:
                raise
            if failure.errno != errno.EPIPE:
                with suppress(OSError):
                    typer.secho(f"cannot write the output: {failure.strerror}", fg=typer.colors.RED, err=True)
                discard_unwritten()
            raise SystemExit(getattr(end, "code", 0) or 1) from None

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the words of the command line: the contexts of the commands consume them."""
        ctx.meta["words"] = tuple(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command, then report it. A file that its user may not read ends it with one line."""
        reports: dict[str, Report] = {}
        before, ok = _reports.set(reports), False
        try:
            result = super().invoke(ctx)
            ok = True
        except typer.Exit as end:
            ok = end.exit_code == 0
            raise
        except PermissionError as error:
            if error.filename is None or ctx.meta["words"][:1] == ("run",):
                raise
            # The data directory of a service belongs to its user.
            typer.secho(f"{cannot_access(error)}; {AS_ITS_USER}", fg=typer.colors.RED, err=True)
            raise typer.Exit(1) from None
        except UnicodeEncodeError as error:
            if error.reason != "surrogates not allowed":
                raise
            typer.secho("an argument or the input is not text in UTF-8", fg=typer.colors.RED, err=True)
            raise typer.Exit(2) from None
        except FileNotFoundError as error:
            if error.filename is not None:
                raise
            text = "the working directory does not exist any more; change to another one"
            typer.secho(text, fg=typer.colors.RED, err=True)
            raise typer.Exit(1) from None
        finally:
            _reports.reset(before)
            if reports:
                command, args = self._split(ctx.meta["words"])
                for report in reports.values():
                    report(command, args, ok)
        return result

    def _split(self, words: tuple[str, ...]) -> tuple[str, str]:
        """Return the name of a command, with its groups, and its arguments as in a shell."""
        entries: Mapping[str, Entry] = self._entries
        count = 0
        for word in words:
            entry = entries.get(word)
            if entry is None:
                break
            count += 1
            entries = entry.commands if isinstance(entry, Group) else {}
        return " ".join(words[:count]), shlex.join(words[count:])


def channels_with(module: str) -> list[str]:
    """Return the names of the channels that have this module or package, without importing them."""
    spec = find_spec("channels")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    # A folder without __init__.py is what an uninstalled package leaves behind.
    patterns = (f"*/{module}.py", f"*/{module}/__init__.py")
    found = (path for folder in folders for pattern in patterns for path in folder.glob(pattern))
    return sorted({path.parts[-2 if path.stem == module else -3] for path in found})
