"""The live view of a running turn: its chat sees the answer grow, as often as the platform allows.

It always shows the newest state and skips those in between. The answer does not depend on it: failures here
are repaired when the final answer is placed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

import structlog

from gateway.contract.channel import PlacementDeferred, PlacementRefused, PlacementUncertain, Streaming
from gateway.delivery.pages import AnswerPages
from gateway.session import Turn
from gateway.session.frames import Event

log = structlog.get_logger("trunkline.live")

_TYPING_AFTER, _TYPING_EVERY = 0.25, 4.0
"""Seconds. The delay saves a call for quick answers; platforms rate-limit typing indicators, too, and hide
them after about 5 s."""
_RETRY_AFTER = 0.25
"""Seconds until a state that could not be shown is shown again, if the platform names no time."""


class ChangeSignal:
    """Wakes the live view when its turn has new output."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self.ended = False
        """Set when the turn has ended: the view stops after its current call."""

    def offer(self, _event: Event) -> None:
        """Note new output, as a reader of the session."""
        self._changed.set()

    async def wait(self) -> None:
        """Wait for output since the last call of ``wait``."""
        await self._changed.wait()
        self._changed.clear()

    def repeat(self) -> None:
        """Wake the view again without new output: the current state was not shown."""
        self._changed.set()


def show_live(
    tasks: asyncio.TaskGroup, turn: Turn, pages: AnswerPages | None
) -> AbstractAsyncContextManager[None]:
    """Show a turn's growing answer and a typing indicator while the block runs, where the channel can."""
    if pages is None or not (pages.shows_typing or pages.streaming):
        return nullcontext()
    return _show_live(tasks, turn, pages)


@asynccontextmanager
async def _show_live(tasks: asyncio.TaskGroup, turn: Turn, pages: AnswerPages) -> AsyncGenerator[None]:
    signal = ChangeSignal()
    turn.session.add_sink(signal)
    typing = tasks.create_task(_show_typing(pages))
    running = [typing]
    if (streaming := pages.streaming) is not None:
        running.append(tasks.create_task(_show_answer(turn, pages, streaming, signal)))
        running[-1].add_done_callback(lambda _: typing.cancel())
    try:
        yield
    finally:
        turn.session.remove_sink(signal)
        signal.ended = True
        # A ``send`` that is cut off may or may not have placed a page. Letting it end spares the platform a
        # search, and chats on platforms without search a duplicate.
        if not pages.placing:
            running[-1].cancel()
        await asyncio.wait(running)


async def _show_typing(pages: AnswerPages) -> None:
    await asyncio.sleep(_TYPING_AFTER)
    while True:
        await pages.send_typing()
        await asyncio.sleep(_TYPING_EVERY)


async def _show_answer(turn: Turn, pages: AnswerPages, streaming: Streaming, signal: ChangeSignal) -> None:
    try:
        await _stream(turn, pages, streaming, signal)
    except PlacementRefused as refused:
        log.info("stopped showing an answer while it is made", reason=str(refused))
    except Exception:
        log.exception("failed to show an answer while it is made", session=turn.session.id)


async def _stream(turn: Turn, pages: AnswerPages, streaming: Streaming, signal: ChangeSignal) -> None:
    while not signal.ended:
        await signal.wait()
        pause = streaming.every
        try:
            if streaming.kind == "draft":
                await pages.update_draft(turn.assembler.preview())
            else:
                await pages.update(turn.assembler.preview(), final=False)
        except PlacementDeferred as deferred:
            pause = max(pause, _RETRY_AFTER if deferred.seconds is None else deferred.seconds)
            signal.repeat()
        except PlacementUncertain:
            log.debug("the platform did not confirm what it shows of an answer", session=turn.session.id)
            pause = max(pause, _RETRY_AFTER)
            signal.repeat()
        if not signal.ended:
            await asyncio.sleep(pause)
