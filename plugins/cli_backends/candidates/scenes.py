"""Checks of a backend with a fake program, which plays one scene in each run."""

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
from plugins.cli_backends.settings import CliSettings, SettingsSource
from plugins.cli_backends.state import Memory, SessionFile

_SILENCE_MS = 1000
_POLLS = 50


class SceneResult(Struct, frozen=True):
    """The result of a scene: its deltas, and its error if it failed."""

    deltas: Sequence[Delta]
    failure: BackendError | None
    first_token_ms: float | None
    remaining_processes: Sequence[str]
    """Ids of processes that still run after the scene."""

    @property
    def text(self) -> str:
        """The text of the answer, without reasoning."""
        return "".join(d.content for d in self.deltas if isinstance(d, TextDelta) and d.kind == "text")


async def allow(tool: str, arguments: Mapping[str, Any]) -> bool:
    """Allow every tool."""
    return True


async def deny(tool: str, arguments: Mapping[str, Any]) -> bool:
    """Deny every tool."""
    return False


@asynccontextmanager
async def fake_backend(cli: Cli, scene: str, **settings: Any) -> AsyncGenerator[tuple[CliProvider, Path]]:
    """Yield a provider whose program is a fake one that plays a scene, and its folder."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        binary, arguments = fake_program(folder, cli.name, scene)
        own = {"binary": binary, "extra_args": arguments, "stall_timeout_ms": _SILENCE_MS * 20, **settings}
        environ = {"PATH": os.defpath, "HOME": name}
        backend = SpawnedBackend(cli, environ, SessionFile())
        source = SettingsSource(CliSettings.model_validate({"plugins": {cli.name: own}}), "")
        memory = Memory(folder / "memory.json")
        dispatcher = Dispatcher([backend], source, memory, folder / "workspace", environ)
        try:
            yield CliProvider(cli.name, cli.program.title, lambda: dispatcher), folder
        finally:
            await backend.shutdown()


async def play(
    cli: Cli, scene: str, ask: Ask = allow, image: ImagePart | None = None, **settings: Any
) -> SceneResult:
    """Play a scene to its end."""
    parts = (*((image,) if image else ()), TextPart("hello"))
    message = Message(session_id="s", role="user", parts=parts)
    options = ChatOptions(model=DEFAULT, message_id="answer", ask=ask)
    deltas: list[Delta] = []
    failure: BackendError | None = None
    first: float | None = None
    async with fake_backend(cli, scene, **settings) as (provider, folder):
        begun = time.perf_counter()
        try:
            async for delta in provider.stream([message], options):
                deltas.append(delta)
                if first is None and isinstance(delta, TextDelta):
                    first = (time.perf_counter() - begun) * 1000
        except BackendError as error:
            failure = error
        left = await _remaining_processes(folder)
    return SceneResult(deltas, failure, first, left)


async def it_answers(cli: Cli) -> None:
    """Check that the provider yields the whole text and an end."""
    found = await _play_to_end(cli, "echo")
    assert found.text == "You said: hello"
    assert isinstance(found.deltas[-1], Complete)


async def it_streams(cli: Cli) -> None:
    """Check that text that the program sends in pieces arrives in pieces."""
    found = await _play_to_end(cli, "echo")
    assert [d.content for d in found.deltas if isinstance(d, TextDelta)] == ["You said: ", "hello"]


async def closing_ends_the_program(cli: Cli) -> None:
    """Check that closing the stream ends the program, even one that ignores SIGTERM."""
    message = Message(session_id="s", role="user", parts=(TextPart("hello"),))
    async with fake_backend(cli, "stubborn") as (provider, folder):
        stream = provider.stream([message], ChatOptions(model=DEFAULT, message_id="answer"))
        await anext(stream)
        await stream.aclose()
        assert not await _remaining_processes(folder)


async def permission_is_requested(cli: Cli) -> None:
    """Check that a tool runs if the user allows it, and not if the user denies it."""
    for ask, is_error in ((allow, False), (deny, True)):
        found = await _play_to_end(cli, "tool", ask)
        [end] = [delta for delta in found.deltas if isinstance(delta, ToolResultEnd)]
        assert end.is_error == is_error
        assert found.text == "Done."


async def tools_run_side_by_side(cli: Cli) -> None:
    """Check that two calls before the first result each get their own result."""
    found = await _play_to_end(cli, "tools")
    calls = [d.tool_call_id for d in found.deltas if isinstance(d, ToolCallStart)]
    ends = [d.tool_call_id for d in found.deltas if isinstance(d, ToolResultEnd)]
    assert len(calls) == 2
    assert calls == ends


async def reasoning_is_separate(cli: Cli) -> None:
    """Check that reasoning is not in the answer's text."""
    found = await _play_to_end(cli, "think")
    assert [d.content for d in found.deltas if isinstance(d, TextDelta)] == ["Hm.", "Yes."]
    assert found.text == "Yes."


async def images_are_passed(cli: Cli) -> None:
    """Check that an image goes to the program with the text."""
    image = ImagePart("aGVsbG8=", "image/png")
    assert (await _play_to_end(cli, "see", image=image)).text == "I see image/png."


async def tokens_are_reported(cli: Cli) -> None:
    """Check that the reported tokens are those of the program."""
    found = await _play_to_end(cli, "echo")
    [usage] = [delta for delta in found.deltas if isinstance(delta, MetadataDelta)]
    assert (usage.input_tokens, usage.output_tokens, usage.cached_tokens) == (8, 3, 2)


async def a_refusal_is_reported(cli: Cli) -> None:
    """Check that the error has the text of the model service."""
    assert "usage limit" in str(await _play_to_failure(cli, "fail", "PROVIDER_ERROR"))


async def a_missing_program_is_reported(cli: Cli) -> None:
    """Check that the error says how to install the program."""
    failure = (await play(cli, "echo", binary="/nowhere/to/be/found")).failure
    assert failure is not None
    assert failure.code == "SPAWN_FAILURE"
    assert cli.program.install in str(failure)


async def a_crash_is_reported(cli: Cli) -> None:
    """Check that the answer so far is kept, and the error has the reason, if the program wrote one."""
    failure = await _play_to_failure(cli, "die", "PROCESS_EXIT", "Half")
    assert "out of memory" in str(failure)
    await _play_to_failure(cli, "die at once", "PROCESS_EXIT")
    await _play_to_failure(cli, "leave", "PROCESS_EXIT", "Half")


async def a_stall_is_reported(cli: Cli) -> None:
    """Check that a program without output is ended, even one that ignores SIGTERM."""
    async with asyncio.TaskGroup() as tasks:
        for scene in ("hang", "stubborn"):
            tasks.create_task(_play_to_failure(cli, scene, "TIMEOUT", "Half", stall_timeout_ms=_SILENCE_MS))


async def noise_is_ignored(cli: Cli) -> None:
    """Check that banners, blank lines, invalid UTF-8 and messages in small pieces cause no failure."""
    for scene in ("banner", "crumbs"):
        assert (await _play_to_end(cli, scene)).text == "You said: hello"


async def floods_are_bounded(cli: Cli) -> None:
    """Check that an endless line and a hundred megabytes on stderr end the dispatch."""
    for scene in ("oversize", "complaint"):
        await _play_to_failure(cli, scene, "BUFFER_OVERFLOW", None)


async def processes_left_behind_are_ended(cli: Cli) -> None:
    """Check that a child of the program that keeps the pipes open is ended with it."""
    async with asyncio.TaskGroup() as tasks:
        for scene, text in (("orphan", "Half"), ("half a line", "Half"), ("question", "")):
            tasks.create_task(_play_to_failure(cli, scene, "PROCESS_EXIT", text))


CHECKS: Mapping[str, Sequence[Callable[[Cli], Awaitable[None]]]] = {
    "text": (it_answers,),
    "stream": (it_streams, closing_ends_the_program),
    "tools": (permission_is_requested,),
    "parallel": (tools_run_side_by_side,),
    "reasoning": (reasoning_is_separate,),
    "images": (images_are_passed,),
    "usage": (tokens_are_reported,),
    "errors": (a_refusal_is_reported, a_missing_program_is_reported),
    "cut": (a_crash_is_reported,),
    "stall": (a_stall_is_reported,),
    "bad input": (noise_is_ignored, floods_are_bounded, processes_left_behind_are_ended),
}
"""The checks, by the columns of the providers' table."""


async def _play_to_end(cli: Cli, scene: str, ask: Ask = allow, image: ImagePart | None = None) -> SceneResult:
    """Play a scene that has to succeed. Raises AssertionError if it fails or if processes remain."""
    found = await play(cli, scene, ask, image)
    if found.failure is not None:
        raise AssertionError(f"{scene!r} failed: {found.failure.code}: {found.failure}")
    if found.remaining_processes:
        raise AssertionError(f"{scene!r} left processes behind: {', '.join(found.remaining_processes)}")
    return found


async def _play_to_failure(
    cli: Cli, scene: str, code: Code, text: str | None = "", **settings: Any
) -> BackendError:
    """Play a scene that has to fail with this code and this text (None: any text). Return its error.

    Raises AssertionError otherwise, and if processes remain.
    """
    found = await play(cli, scene, **settings)
    if found.failure is None or found.failure.code != code:
        raise AssertionError(f"{scene!r} ended with {found.failure!r} instead of {code}")
    if text not in (None, found.text):
        raise AssertionError(f"{scene!r} gave {found.text!r} instead of {text!r}")
    if found.remaining_processes:
        raise AssertionError(f"{scene!r} left processes behind: {', '.join(found.remaining_processes)}")
    return found.failure


async def _remaining_processes(folder: Path) -> list[str]:
    """Return the processes of a scene that do not end within a second; none on systems without ``/proc``."""
    left = _processes_of(folder)
    for _ in range(_POLLS):
        if not left:
            break
        await asyncio.sleep(_SILENCE_MS / 1000 / _POLLS)
        left = _processes_of(folder)
    return left


def _processes_of(folder: Path) -> list[str]:
    path_bytes = os.fsencode(folder)
    return [place.parent.name for place in Path("/proc").glob("[0-9]*/cmdline") if path_bytes in _read(place)]


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""
