"""One run of a program for a dispatch: what it says is heard, what it asks is answered, and it ends."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncGenerator, Iterable, Sequence

import msgspec
import structlog

from gateway.provider_http import Ask
from plugins.cli_backends.adapters.cli import Cli, SpokenTo
from plugins.cli_backends.adapters.protocol import Ended, Event, Line, Permission, Send, Session
from plugins.cli_backends.contract import BackendError, Called, Code, Returned, Said, Spent
from plugins.cli_backends.process import (
    GRACE_SECONDS,
    Child,
    DeadlineError,
    FloodError,
    Launch,
    Patience,
    SilenceError,
    message_in,
)

log = structlog.get_logger("trunkline.cli_backends")

FAREWELL_SECONDS = 2.0
"""What a program gets to put its session away when it has answered."""

Shown = Said | Called | Returned | Spent

_TELLING = re.compile(r"error|fatal|panic", re.IGNORECASE)
_WORDS = 300


class Run:
    """One process and the talk with it. ``secrets`` are kept out of what is told of it."""

    def __init__(
        self,
        cli: Cli,
        talk: SpokenTo,
        launch: Launch,
        seconds: float,
        stall: float,
        ask: Ask | None,
        secrets: Sequence[str] = (),
    ) -> None:
        self._cli = cli
        self._talk = talk
        self._launch = launch
        self._patience = Patience(asyncio.get_running_loop().time() + seconds, stall)
        self._seconds = seconds
        self._ask = ask
        self._secrets = secrets
        self._child: Child | None = None
        self._question: asyncio.Timeout | None = None
        self._stray = ""
        self._aborted = False

    async def steps(self) -> AsyncGenerator[Shown | Session, None]:
        """What happens until the program has answered. Raises BackendError when it does not."""
        child = self._child = await self._started()
        try:
            self._write(child, self._talk.begin())
            async for step in self._heard(child):
                yield step
            child.close_input()
            await child.gone(FAREWELL_SECONDS)
        except FloodError as error:
            raise self._failure("BUFFER_OVERFLOW", f"it said too much: {error}", child) from None
        except SilenceError:
            said = f"it said nothing for {self._patience.stall:g} seconds"
            raise self._failure("TIMEOUT", self._with_stray(said), child) from None
        except DeadlineError:
            said = f"it was not done after {self._seconds:g} seconds"
            raise self._failure("TIMEOUT", said, child) from None
        finally:
            await child.end()

    async def abort(self) -> None:
        """End the program; ``steps`` then raises ABORTED."""
        self._aborted = True
        if self._child is not None:
            self._child.stop()
            self._give_up()
            await self._child.end()

    async def _started(self) -> Child:
        try:
            return await Child.start(self._launch)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            place = f"{self._launch.argv[0]} in {self._launch.cwd}"
            raise BackendError(
                "SPAWN_FAILURE", self._cli.name, f"{place} cannot be started: {reason}"
            ) from None

    async def _heard(self, child: Child) -> AsyncGenerator[Shown | Session, None]:
        while True:
            line = None if self._aborted else await child.line(self._patience)
            if line is None:
                raise await self._ended_early(child)
            message = message_in(line)
            if message is None:
                self._stray = line[:_WORDS].decode(errors="replace").strip()
                continue
            child.touch()
            for event in self._meaning(message):
                match event:
                    case Send():
                        self._write(child, [event.line])
                    case Permission():
                        self._write(child, self._talk.decide(event, await self._may(child, event)))
                    case Ended(problem=""):
                        return
                    case Ended():
                        raise self._failure(event.code, event.problem, child)
                    case _:
                        yield event

    def _meaning(self, message: Line) -> Sequence[Event]:
        try:
            return self._talk.hear(message)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            log.warning("a message makes no sense", backend=self._cli.name, reason=repr(error))
            return []

    async def _may(self, child: Child, asked: Permission) -> bool:
        """Somebody's word. The program's silence meanwhile is no stall."""
        if self._ask is None:
            return False
        try:
            async with asyncio.timeout_at(self._patience.until) as self._question:
                child.on_gone = self._give_up
                return await self._ask(f"{self._cli.name}:{asked.tool}", asked.arguments)
        except TimeoutError:
            return False
        finally:
            self._question = child.on_gone = None
            child.touch()

    def _give_up(self) -> None:
        """Nobody needs the word any more that is being waited for."""
        if self._question is not None and not self._question.expired():
            self._question.reschedule(asyncio.get_running_loop().time())

    async def _ended_early(self, child: Child) -> BackendError:
        if self._aborted:
            return BackendError("ABORTED", self._cli.name, "stopped")
        await child.gone(GRACE_SECONDS)
        code = child.code
        lost = self._cli.lost_session
        if lost and any(lost in line for line in child.errors):
            return self._failure("SESSION_ERROR", "it does not know its session any more", child)
        if code is None:
            said = "it closed its output without an answer"
        elif code < 0:
            said = f"it was ended by {_signal_name(-code)}"
        else:
            said = f"it ended with status {code} and without an answer"
        return self._failure("PROCESS_EXIT", self._with_stray(said), child)

    def _with_stray(self, said: str) -> str:
        return f"{said}; its last words: {self._stray}" if self._stray else said

    def _failure(self, code: Code, said: str, child: Child) -> BackendError:
        """An error in our words and, where it complained, in the program's."""
        telling = next(filter(_TELLING.search, child.errors), "")
        whole = f"{said} ({telling[:_WORDS]})" if telling and telling not in said else said
        return BackendError(code, self._cli.name, self._masked(whole), self._masked("\n".join(child.errors)))

    def _masked(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "…")
        return text

    @staticmethod
    def _write(child: Child, lines: Iterable[Line]) -> None:
        child.write(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
