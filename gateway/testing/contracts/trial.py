"""The trial of a provider: all checks of the contract by column, and the time to the first token."""

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
        contract.the_stop_reason_is_reported,
        contract.a_long_history_is_accepted,
        contract.every_option_is_accepted,
    ),
    "stream": (contract.text_arrives_as_it_is_sent, contract.closing_ends_the_call),
    "tools": (contract.a_call_comes_in_fragments,),
    "parallel": (contract.parallel_calls_are_separate,),
    "reasoning": (contract.reasoning_is_a_separate_part,),
    "images": (
        contract.an_image_is_sent,
        contract.images_become_text_without_image_support,
        contract.capabilities_of_a_model_override_the_providers,
    ),
    "usage": (contract.tokens_are_counted_once,),
    "errors": (
        contract.a_filtered_answer_is_an_error,
        failures.every_http_error_has_a_named_error,
        failures.the_vendors_error_messages_are_recognized,
        failures.a_stopped_server_is_unavailable,
        failures.no_error_shows_the_key,
    ),
    "retries": (
        failures.retry_after_is_respected_and_reported,
        failures.failures_before_the_first_piece_are_retried,
        failures.retries_are_limited,
    ),
    "cut": (failures.a_broken_stream_keeps_its_text,),
    "stall": (
        failures.a_stalled_stream_keeps_its_text,
        failures.a_stall_before_the_first_piece_is_an_error,
    ),
    "bad input": BAD_INPUT,
}
"""Every check of the contract, by the column of the table that shows it."""

S = TypeVar("S")
OnCheck = Callable[[str], None]

Outcome = Literal["ok", "failed", "not installed"]

_CHECK_SECONDS = 60.0
_CALLS = 5
_AT_ONCE = 6


class Trial(Struct, frozen=True, kw_only=True):
    """The result of a trial. ``columns`` says which columns passed; ``first_token_ms`` is the time to the
    first text.

    ``problems`` are the failed checks with their reasons; ``way_out`` is advice.
    """

    name: str
    protocol: str
    outcome: Outcome
    columns: Mapping[str, bool] = {}
    first_token_ms: float | None = None
    problems: Sequence[str] = ()
    way_out: str = ""


class Candidate(Struct, frozen=True, kw_only=True):
    """An adapter to try. ``checks`` is their number.

    ``warm_up`` measures the time to the first token, or returns a result if no trial is possible; ``run``
    takes that time and calls back after each check.
    """

    name: str
    protocol: str
    checks: int
    warm_up: Callable[[], Awaitable[float | Trial]]
    run: Callable[[float, OnCheck], Awaitable[Trial]]


def candidate(setup: ProviderSetup, protocol: str) -> Candidate:
    """Return the candidate for a provider with its fake server."""

    async def warm_up() -> float | Trial:
        try:
            return await first_token_ms(setup)
        except SettingsError as error:
            return Trial(name=setup.id, protocol=protocol, outcome="not installed", way_out=str(error))
        except Exception as error:  # noqa: BLE001 - every error of an adapter is a result
            return Trial(name=setup.id, protocol=protocol, outcome="failed", problems=(reason_of(error),))

    async def run(first_token: float, on_check: OnCheck) -> Trial:
        columns, problems = await run_checks(setup, COLUMNS, on_check)
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


async def try_all(
    candidates: Sequence[Candidate], on_check: OnCheck, finished: Callable[[Trial], None]
) -> list[Trial]:
    """Try all candidates: the time to the first token one after the other, the checks concurrently."""
    warm = [await each.warm_up() for each in candidates]
    at_once = asyncio.Semaphore(_AT_ONCE)

    async def try_one(each: Candidate, begun: float | Trial) -> Trial:
        async with at_once:
            trial = begun if isinstance(begun, Trial) else await each.run(begun, on_check)
        finished(trial)
        return trial

    async with asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(try_one(each, begun)) for each, begun in zip(candidates, warm, strict=True)
        ]
    return [task.result() for task in running]


async def run_checks(
    subject: S, checks: Mapping[str, Sequence[Callable[[S], Awaitable[None]]]], on_check: OnCheck
) -> tuple[Mapping[str, bool], Sequence[str]]:
    """Return the columns with their results, and the reasons of failures."""
    columns: dict[str, bool] = {}
    problems: list[str] = []
    for column, each in checks.items():
        found = [problem for check in each if (problem := await _problem(check, subject, on_check))]
        columns[column] = not found
        problems += found
    return columns, problems


async def first_token_ms(setup: ProviderSetup) -> float:
    """Return the median time from a call to its first text, in milliseconds; the server answers at once."""
    times: list[float] = []
    async with setup.running() as (_, provider):
        for _call in range(_CALLS):
            begun = time.perf_counter()
            async for delta in provider.stream((user("Hi"),), OPTIONS):
                if isinstance(delta, TextDelta):
                    times.append((time.perf_counter() - begun) * 1000)
                    break
    return median(times)


async def _problem(check: Callable[[S], Awaitable[None]], subject: S, on_check: OnCheck) -> str:
    """Run a check. Return the reason of its failure, or an empty string."""
    try:
        async with asyncio.timeout(_CHECK_SECONDS):
            await check(subject)
    except Exception as error:  # noqa: BLE001 - every error of an adapter is a result
        return f"{named(check).replace('_', ' ')}: {reason_of(error)}"
    finally:
        on_check(named(check))
    return ""


def reason_of(error: Exception) -> str:
    """Return an error in one line; for an error without text, its line of code."""
    if said := str(error).strip():
        return f"{type(error).__name__}: {said.splitlines()[0][:300]}"
    lines = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__}: {lines[-1].line}" if lines else type(error).__name__
