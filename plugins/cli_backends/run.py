"""One run of a program for a dispatch: its messages become events, its permission requests are answered."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncGenerator, Iterable, Sequence

import msgspec
import structlog

from gateway.provider_http import Ask
from plugins.cli_backends.adapters.cli import Cli
from plugins.cli_backends.adapters.protocol import (
    Adapter,
    Event,
    Finished,
    JsonObject,
    Outgoing,
    PermissionRequest,
    SessionOpened,
)
from plugins.cli_backends.contract import BackendError, Code, TextChunk, ToolCall, ToolResult, Usage
from plugins.programs.process import (
    GRACE_SECONDS,
    ChildProcess,
    DeadlineError,
    Launch,
    OutputLimitError,
    StallError,
    TimeLimits,
    parse_message,
)

log = structlog.get_logger("trunkline.cli_backends")

EXIT_SECONDS = 2.0
"""The time for a program to save its session after its answer."""

Step = TextChunk | ToolCall | ToolResult | Usage

_ERROR_LINE = re.compile(r"error|fatal|panic", re.IGNORECASE)
_QUOTE_CHARS = 300


class Run:
    """One process and its protocol. ``secrets`` are removed from errors."""

    def __init__(
        self,
        cli: Cli,
        adapter: Adapter,
        launch: Launch,
        seconds: float,
        stall: float,
        ask: Ask | None,
        secrets: Sequence[str] = (),
    ) -> None:
        self._cli = cli
        self._adapter = adapter
        self._launch = launch
        self._limits = TimeLimits(asyncio.get_running_loop().time() + seconds, stall)
        self._seconds = seconds
        self._ask = ask
        self._secrets = secrets
        self._child: ChildProcess | None = None
        self._question: asyncio.Timeout | None = None
        self._last_text = ""
        self._aborted = False

    async def steps(self) -> AsyncGenerator[Step | SessionOpened, None]:
        """Yield events until the program has answered. Raises BackendError if it fails."""
        child = self._child = await self._started()
        try:
            self._write(child, self._adapter.begin())
            async for step in self._read_events(child):
                yield step
            child.close_input()
            await child.wait_exit(EXIT_SECONDS)
        except OutputLimitError as error:
            raise self._failure("BUFFER_OVERFLOW", f"it wrote too much: {error}", child) from None
        except StallError:
            reason = f"no output for {self._limits.stall:g} seconds"
            raise self._failure("TIMEOUT", self._with_last_text(reason), child) from None
        except DeadlineError:
            reason = f"not finished after {self._seconds:g} seconds"
            raise self._failure("TIMEOUT", reason, child) from None
        finally:
            await child.end()

    async def abort(self) -> None:
        """End the program; ``steps`` then raises BackendError with the code ABORTED."""
        self._aborted = True
        if self._child is not None:
            self._child.stop()
            self._cancel_question()
            await self._child.end()

    async def _started(self) -> ChildProcess:
        try:
            return await ChildProcess.start(self._launch)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            place = f"{self._launch.argv[0]} in {self._launch.cwd}"
            raise BackendError(
                "SPAWN_FAILURE", self._cli.name, f"{place} cannot be started: {reason}"
            ) from None

    async def _read_events(self, child: ChildProcess) -> AsyncGenerator[Step | SessionOpened, None]:
        while True:
            line = None if self._aborted else await child.read_line(self._limits)
            if line is None:
                raise await self._ended_early(child)
            message = parse_message(line)
            if message is None:
                self._last_text = line[:_QUOTE_CHARS].decode(errors="replace").strip()
                continue
            child.mark_active()
            for event in self._parse(message):
                match event:
                    case Outgoing():
                        self._write(child, [event.message])
                    case PermissionRequest():
                        self._write(
                            child, self._adapter.decide(event, await self._ask_permission(child, event))
                        )
                    case Finished(error=""):
                        return
                    case Finished():
                        raise self._failure(event.code, event.error, child)
                    case _:
                        yield event

    def _parse(self, message: JsonObject) -> Sequence[Event]:
        try:
            return self._adapter.read(message)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            log.warning("invalid message from program", backend=self._cli.name, reason=repr(error))
            return []

    async def _ask_permission(self, child: ChildProcess, request: PermissionRequest) -> bool:
        """Ask for permission. While the question is open, the program's silence is not a stall."""
        if self._ask is None:
            return False
        try:
            async with asyncio.timeout_at(self._limits.until) as self._question:
                child.on_gone = self._cancel_question
                return await self._ask(f"{self._cli.name}:{request.tool}", request.arguments)
        except TimeoutError:
            return False
        finally:
            self._question = child.on_gone = None
            child.mark_active()

    def _cancel_question(self) -> None:
        """Cancel the open permission request: its program has ended."""
        if self._question is not None and not self._question.expired():
            self._question.reschedule(asyncio.get_running_loop().time())

    async def _ended_early(self, child: ChildProcess) -> BackendError:
        if self._aborted:
            return BackendError("ABORTED", self._cli.name, "stopped")
        await child.wait_exit(GRACE_SECONDS)
        await child.wait_errors()
        code = child.code
        lost = self._cli.lost_session
        if lost and any(lost in line for line in child.errors):
            return self._failure("SESSION_ERROR", "the program does not know its session any more", child)
        if code is None:
            reason = "the program closed its output without an answer"
        elif code < 0:
            reason = f"the program was ended by {_signal_name(-code)}"
        else:
            reason = f"the program ended with status {code} and without an answer"
        return self._failure("PROCESS_EXIT", self._with_last_text(reason), child)

    def _with_last_text(self, reason: str) -> str:
        return f"{reason}; last output: {self._last_text}" if self._last_text else reason

    def _failure(self, code: Code, reason: str, child: ChildProcess) -> BackendError:
        """Return an error, with the first line of stderr that looks like one."""
        complaint = next(filter(_ERROR_LINE.search, child.errors), "")
        if complaint and complaint not in reason:
            reason = f"{reason} ({complaint[:_QUOTE_CHARS]})"
        return BackendError(code, self._cli.name, self._redact(reason), self._redact("\n".join(child.errors)))

    def _redact(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "…")
        return text

    @staticmethod
    def _write(child: ChildProcess, lines: Iterable[JsonObject]) -> None:
        child.write(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
