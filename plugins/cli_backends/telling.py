"""Telling the progress of a dispatch to callbacks."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import structlog

from gateway import TrunklineError
from plugins.cli_backends.contract import Callbacks, DispatchResult, Done, Progress, Started
from plugins.cli_backends.failures import BackendError
from plugins.cli_backends.talk import Called, Returned, Said, Spent

log = structlog.get_logger("trunkline.cli_backends")


async def told(progress: AsyncGenerator[Progress, None], callbacks: Callbacks) -> DispatchResult:
    """Follow a dispatch to its end and tell what happens. The last call is the one terminal callback."""
    task_id = backend = ""
    names: dict[str, str] = {}
    async with aclosing(progress):
        try:
            async for event in progress:
                match event:
                    case Started():
                        task_id, backend = event.task_id, event.backend
                    case Said(reasoning=False):
                        await _call(callbacks.on_token, event.text, task_id)
                    case Called():
                        names[event.id] = event.tool
                        await _call(callbacks.on_tool_call, event.tool, event.arguments, task_id)
                    case Returned():
                        tool = names.get(event.id, event.id)
                        await _call(callbacks.on_tool_result, tool, event.output, task_id)
                    case Done(result=result):
                        return await _finish(result, callbacks)
                    case Said() | Spent():
                        pass
        except asyncio.CancelledError:
            await _call(callbacks.on_error, BackendError("ABORTED", backend, "stopped"), task_id)
            raise
    raise TrunklineError("a dispatch ended without an end")


async def _finish(result: DispatchResult, callbacks: Callbacks) -> DispatchResult:
    if result.error is None:
        await _call(callbacks.on_done, result, result.task_id)
    else:
        await _call(callbacks.on_error, result.error, result.task_id)
    return result


async def _call(callback: Callable[..., Any], *arguments: Any) -> None:
    try:
        answer = callback(*arguments)
        if inspect.isawaitable(answer):
            await answer
    except Exception:
        log.exception("a callback of a dispatch failed")
