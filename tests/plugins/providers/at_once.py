"""A check of many providers at the same time: most of them wait for a time limit or for each other's turn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from gateway.testing.contracts.provider_setup import ProviderSetup


async def check_all(
    check: Callable[[ProviderSetup], Awaitable[None]], setups: Iterable[ProviderSetup]
) -> None:
    """Check all providers. Raises the errors of all that fail, each with a note that names the provider."""
    tried = list(setups)
    results = await asyncio.gather(*map(check, tried), return_exceptions=True)
    failures: list[Exception] = []
    for setup, result in zip(tried, results, strict=True):
        if isinstance(result, Exception):
            result.add_note(f"provider: {setup.id}")
            failures.append(result)
        elif isinstance(result, BaseException):
            raise result
    if failures:
        raise ExceptionGroup("providers failed", failures)
