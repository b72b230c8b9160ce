"""A trial of a provider: the contract's checks by what they are about, and the time to the first token."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from statistics import median
from typing import Literal, TypeVar

from msgspec import Struct

from gateway.contract.deltas import TextDelta
from gateway.contract.errors import SettingsError
from gateway.testing.contracts import provider_contract as contract
from gateway.testing.contracts import provider_failures as failures
from gateway.testing.contracts.bad_input import BAD_INPUT
from gateway.testing.contracts.provider_calls import OPTIONS, user
from gateway.testing.contracts.provider_setup import Check, ProviderSetup, named

COLUMNS: Mapping[str, Sequence[Check]] = {
    "text": (
        contract.it_is_a_provider,
        contract.the_stop_reason_is_told,
        contract.a_long_history_is_accepted,
        contract.every_option_is_accepted,
    ),
    "stream": (contract.text_streams_as_it_comes, contract.closing_ends_the_call),
    "tools": (contract.a_call_comes_in_fragments,),
    "parallel": (contract.calls_run_side_by_side,),
    "reasoning": (contract.reasoning_is_a_part_of_its_own,),
    "images": (
        contract.a_picture_is_sent,
        contract.who_cannot_see_is_told_of_a_picture,
        contract.a_model_may_differ_from_what_is_usual,
    ),
    "usage": (contract.tokens_are_counted_once,),
    "errors": (
        contract.a_filtered_answer_is_an_error,
        failures.every_refusal_has_a_name,
        failures.the_vendors_own_words_are_understood,
        failures.a_server_that_is_gone_is_unavailable,
        failures.no_error_shows_the_key,
    ),
    "retries": (
        failures.a_wait_is_waited_and_told,
        failures.what_fails_before_the_first_piece_is_tried_again,
        failures.retries_end,
    ),
    "cut": (failures.a_stream_that_breaks_keeps_what_came,),
    "stall": (
        failures.a_stream_that_falls_silent_keeps_what_came,
        failures.silence_before_the_first_piece_is_noticed,
    ),
    "bad input": BAD_INPUT,
}
"""Every check of the contract, in the column of a table that it belongs to."""

S = TypeVar("S")
Done = Callable[[str], None]

Outcome = Literal["ok", "failed", "not installed"]

_PATIENCE = 60.0
_CALLS = 5
_AT_ONCE = 6


class Trial(Struct, frozen=True, kw_only=True):
    """What came of it. ``columns`` says which held; ``first_token_ms`` is from the call to the first text.

    ``problems`` are the checks that failed, each with its reason; ``way_out`` says what to do.
    """

    name: str
    protocol: str
    outcome: Outcome
    columns: Mapping[str, bool] = {}
    first_token_ms: float | None = None
    problems: Sequence[str] = ()
    way_out: str = ""


class Candidate(Struct, frozen=True, kw_only=True):
    """What can be tried. ``checks`` are how many; ``warm_up`` tells the time to the first token, or what
    came of it where there can be no trial; ``run`` takes that time and is told whom to tell of each check.
    """

    name: str
    protocol: str
    checks: int
    warm_up: Callable[[], Awaitable[float | Trial]]
    run: Callable[[float, Done], Awaitable[Trial]]


def candidate(setup: ProviderSetup, protocol: str) -> Candidate:
    """A provider, against its fake server."""

    async def warm_up() -> float | Trial:
        try:
            return await first_token_ms(setup)
        except SettingsError as error:
            return Trial(name=setup.id, protocol=protocol, outcome="not installed", way_out=str(error))
        except Exception as error:  # noqa: BLE001 - whatever an adapter does wrong is what is looked for
            return Trial(name=setup.id, protocol=protocol, outcome="failed", problems=(reason_of(error),))

    async def run(first_token: float, done: Done) -> Trial:
        columns, problems = await judged(setup, COLUMNS, done)
        return Trial(
            name=setup.id,
            protocol=protocol,
            outcome="failed" if problems else "ok",
            columns=columns,
            first_token_ms=first_token,
            problems=problems,
        )

    checks = sum(map(len, COLUMNS.values()))
    return Candidate(name=setup.id, protocol=protocol, checks=checks, warm_up=warm_up, run=run)


async def all_tried(
    candidates: Sequence[Candidate], done: Done, finished: Callable[[Trial], None]
) -> list[Trial]:
    """Try them all: their speed one after the other, the rest side by side."""
    warm = [await each.warm_up() for each in candidates]
    at_once = asyncio.Semaphore(_AT_ONCE)

    async def tried(each: Candidate, begun: float | Trial) -> Trial:
        async with at_once:
            trial = begun if isinstance(begun, Trial) else await each.run(begun, done)
        finished(trial)
        return trial

    async with asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(tried(each, begun)) for each, begun in zip(candidates, warm, strict=True)
        ]
    return [task.result() for task in running]


async def judged(
    subject: S, checks: Mapping[str, Sequence[Callable[[S], Awaitable[None]]]], done: Done
) -> tuple[Mapping[str, bool], Sequence[str]]:
    """The columns whose checks hold, and why others do not. ``done`` is told of every check that is over."""
    columns: dict[str, bool] = {}
    problems: list[str] = []
    for column, each in checks.items():
        found = [problem for check in each if (problem := await _problem(check, subject, done))]
        columns[column] = not found
        problems += found
    return columns, problems


async def first_token_ms(setup: ProviderSetup) -> float:
    """Milliseconds from a call to its first text, of a server that answers at once: the middle of some."""
    waited: list[float] = []
    async with setup.running() as (_, provider):
        for _call in range(_CALLS):
            begun = time.perf_counter()
            async for delta in provider.stream((user("Hi"),), OPTIONS):
                if isinstance(delta, TextDelta):
                    waited.append((time.perf_counter() - begun) * 1000)
                    break
    return median(waited)


async def _problem(check: Callable[[S], Awaitable[None]], subject: S, done: Done) -> str:
    """Why a check failed; empty if it did not."""
    try:
        async with asyncio.timeout(_PATIENCE):
            await check(subject)
    except Exception as error:  # noqa: BLE001 - whatever an adapter does wrong is what is looked for
        return f"{named(check).replace('_', ' ')}: {reason_of(error)}"
    finally:
        done(named(check))
    return ""


def reason_of(error: Exception) -> str:
    """An error in a line; of one without words, the line of code that it comes from."""
    if said := str(error).strip():
        return f"{type(error).__name__}: {said.splitlines()[0][:300]}"
    lines = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__}: {lines[-1].line}" if lines else type(error).__name__
