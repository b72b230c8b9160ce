"""A trial of the coding programs' backends, with a stand-in for each of the programs."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec import Struct

from gateway import ChatOptions, Complete, Delta, ImagePart, Message, TextDelta, TextPart
from gateway.provider_http import Ask, MetadataDelta, ToolCallStart, ToolResultEnd
from gateway.testing.fake_program import fake_program
from plugins.cli_backends.adapters.cli import Cli
from plugins.cli_backends.backend import SpawnedBackend
from plugins.cli_backends.contract import BackendError, Code
from plugins.cli_backends.dispatcher import Dispatcher
from plugins.cli_backends.provider import DEFAULT, CliProvider
from plugins.cli_backends.settings import SettingsSource
from plugins.cli_backends.state import Memory, SessionFile

_SILENCE_MS = 1000
_LOOKS = 50


class Played(Struct, frozen=True):
    """What came of a scene: the deltas, and the failure if it ended in one."""

    deltas: Sequence[Delta]
    failure: BackendError | None
    first_token_ms: float | None
    left_behind: Sequence[str]
    """Processes that are there when it is over."""

    @property
    def text(self) -> str:
        """The answer's text."""
        return "".join(d.content for d in self.deltas if isinstance(d, TextDelta) and d.kind == "text")


async def yes(tool: str, arguments: Mapping[str, Any]) -> bool:
    """Whatever is asked may be."""
    return True


async def no(tool: str, arguments: Mapping[str, Any]) -> bool:
    """Whatever is asked may not be."""
    return False


@asynccontextmanager
async def standing_in(cli: Cli, scene: str, **settings: Any) -> AsyncGenerator[tuple[CliProvider, Path]]:
    """A provider whose program is a stand-in that plays a scene, and the folder that this is in."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        binary, arguments = fake_program(folder, cli.name, scene)
        own = {"binary": binary, "extra_args": arguments, "stall_timeout_ms": _SILENCE_MS * 20, **settings}
        environ = {"PATH": os.defpath, "HOME": name}
        backend = SpawnedBackend(cli, environ, SessionFile())
        source = SettingsSource({"plugins": {cli.name: own}}, "")
        memory = Memory(folder / "memory.json")
        dispatcher = Dispatcher([backend], source, memory, folder / "workspace", environ)
        try:
            yield CliProvider(cli.name, cli.title, lambda: dispatcher), folder
        finally:
            await backend.shutdown()


async def played(
    cli: Cli, scene: str, ask: Ask = yes, picture: ImagePart | None = None, **settings: Any
) -> Played:
    """Play a scene to its end."""
    parts = (*((picture,) if picture else ()), TextPart("hello"))
    message = Message(session_id="s", role="user", parts=parts)
    options = ChatOptions(model=DEFAULT, message_id="answer", ask=ask)
    deltas: list[Delta] = []
    failure: BackendError | None = None
    first: float | None = None
    async with standing_in(cli, scene, **settings) as (provider, folder):
        begun = time.perf_counter()
        try:
            async for delta in provider.stream([message], options):
                deltas.append(delta)
                if first is None and isinstance(delta, TextDelta):
                    first = (time.perf_counter() - begun) * 1000
        except BackendError as error:
            failure = error
        left = await _left_behind(folder)
    return Played(deltas, failure, first, left)


async def it_answers(cli: Cli) -> None:
    """Its text, whole, and an end."""
    found = await _well(cli, "echo")
    assert found.text == "You said: hello"
    assert isinstance(found.deltas[-1], Complete)


async def it_streams(cli: Cli) -> None:
    """What it says in pieces comes in pieces."""
    found = await _well(cli, "echo")
    assert [d.content for d in found.deltas if isinstance(d, TextDelta)] == ["You said: ", "hello"]


async def closing_ends_the_program(cli: Cli) -> None:
    """Whoever stops listening ends it, also where it does not want to."""
    message = Message(session_id="s", role="user", parts=(TextPart("hello"),))
    async with standing_in(cli, "stubborn") as (provider, folder):
        stream = provider.stream([message], ChatOptions(model=DEFAULT, message_id="answer"))
        await anext(stream)
        await stream.aclose()
        assert not await _left_behind(folder)


async def a_tool_is_asked_for(cli: Cli) -> None:
    """A person's yes lets it run, a no does not; both are in the answer."""
    for ask, is_error in ((yes, False), (no, True)):
        found = await _well(cli, "tool", ask)
        [end] = [delta for delta in found.deltas if isinstance(delta, ToolResultEnd)]
        assert end.is_error == is_error
        assert found.text == "Done."


async def tools_run_side_by_side(cli: Cli) -> None:
    """Two calls before the first result: each gets its own."""
    found = await _well(cli, "tools")
    calls = [d.tool_call_id for d in found.deltas if isinstance(d, ToolCallStart)]
    ends = [d.tool_call_id for d in found.deltas if isinstance(d, ToolResultEnd)]
    assert len(calls) == 2
    assert calls == ends


async def reasoning_is_apart(cli: Cli) -> None:
    """Reasoning is not in the answer."""
    found = await _well(cli, "think")
    assert [d.content for d in found.deltas if isinstance(d, TextDelta)] == ["Hm.", "Yes."]
    assert found.text == "Yes."


async def it_sees(cli: Cli) -> None:
    """A picture goes with the words."""
    picture = ImagePart("aGVsbG8=", "image/png")
    assert (await _well(cli, "see", picture=picture)).text == "I see image/png."


async def tokens_are_told(cli: Cli) -> None:
    """Those it says it took."""
    found = await _well(cli, "echo")
    [told] = [delta for delta in found.deltas if isinstance(delta, MetadataDelta)]
    assert (told.input_tokens, told.output_tokens, told.cached_tokens) == (8, 3, 2)


async def a_refusal_is_told(cli: Cli) -> None:
    """In the words of its model service."""
    assert "usage limit" in str(await _failing(cli, "fail", "PROVIDER_ERROR"))


async def a_program_that_is_not_there_is_named(cli: Cli) -> None:
    """With the way to install it."""
    failure = (await played(cli, "echo", binary="/nowhere/to/be/found")).failure
    assert failure is not None
    assert failure.code == "SPAWN_FAILURE"
    assert cli.install in str(failure)


async def a_program_that_dies_is_noticed(cli: Cli) -> None:
    """With what it said before, and why, as far as it told."""
    failure = await _failing(cli, "die", "PROCESS_EXIT", "Half")
    assert "out of memory" in str(failure)
    await _failing(cli, "die at once", "PROCESS_EXIT")
    await _failing(cli, "leave", "PROCESS_EXIT", "Half")


async def silence_is_noticed(cli: Cli) -> None:
    """Also of a program that does not want to end."""
    for scene in ("hang", "stubborn"):
        await _failing(cli, scene, "TIMEOUT", "Half", stall_timeout_ms=_SILENCE_MS)


async def noise_is_passed_over(cli: Cli) -> None:
    """Banners, blank lines, what is no UTF-8, and messages in crumbs."""
    for scene in ("banner", "crumbs"):
        assert (await _well(cli, scene)).text == "You said: hello"


async def floods_are_bounded(cli: Cli) -> None:
    """A line without end, messages without end, and a hundred megabytes of complaint."""
    for scene in ("oversize", "complaint"):
        await _failing(cli, scene, "BUFFER_OVERFLOW", None)


async def whoever_stays_behind_is_ended(cli: Cli) -> None:
    """A program that leaves another one behind, which keeps the pipes open."""
    await _failing(cli, "orphan", "PROCESS_EXIT", "Half")
    await _failing(cli, "half a line", "PROCESS_EXIT", "Half")
    await _failing(cli, "question", "PROCESS_EXIT")


CHECKS: Mapping[str, Sequence[Callable[[Cli], Awaitable[None]]]] = {
    "text": (it_answers,),
    "stream": (it_streams, closing_ends_the_program),
    "tools": (a_tool_is_asked_for,),
    "parallel": (tools_run_side_by_side,),
    "reasoning": (reasoning_is_apart,),
    "images": (it_sees,),
    "usage": (tokens_are_told,),
    "errors": (a_refusal_is_told, a_program_that_is_not_there_is_named),
    "cut": (a_program_that_dies_is_noticed,),
    "stall": (silence_is_noticed,),
    "bad input": (noise_is_passed_over, floods_are_bounded, whoever_stays_behind_is_ended),
}
"""What is looked at, by the columns of the providers' table."""


async def _well(cli: Cli, scene: str, ask: Ask = yes, picture: ImagePart | None = None) -> Played:
    """A scene that ends well."""
    found = await played(cli, scene, ask, picture)
    if found.failure is not None:
        raise AssertionError(f"{scene!r} failed: {found.failure.code}: {found.failure}")
    if found.left_behind:
        raise AssertionError(f"{scene!r} left processes behind: {', '.join(found.left_behind)}")
    return found


async def _failing(cli: Cli, scene: str, code: Code, text: str | None = "", **settings: Any) -> BackendError:
    """The failure that a scene ends in, after a text; None is any. Nothing of it is left running."""
    found = await played(cli, scene, **settings)
    if found.failure is None or found.failure.code != code:
        raise AssertionError(f"{scene!r} ended with {found.failure!r} instead of {code}")
    if text not in (None, found.text):
        raise AssertionError(f"{scene!r} showed {found.text!r} instead of {text!r}")
    if found.left_behind:
        raise AssertionError(f"{scene!r} left processes behind: {', '.join(found.left_behind)}")
    return found.failure


async def _left_behind(folder: Path) -> list[str]:
    """The processes of a scene that do not go away, and none where the system does not tell."""
    left = _running_in(folder)
    for _ in range(_LOOKS):
        if not left:
            break
        await asyncio.sleep(_SILENCE_MS / 1000 / _LOOKS)
        left = _running_in(folder)
    return left


def _running_in(folder: Path) -> list[str]:
    wanted = os.fsencode(folder)
    return [place.parent.name for place in Path("/proc").glob("[0-9]*/cmdline") if wanted in _read(place)]


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""
