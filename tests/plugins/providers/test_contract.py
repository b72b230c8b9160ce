"""Every provider, held to the same contract against a server that speaks its protocol and its quirks."""

from __future__ import annotations

import pytest

from gateway.models import TRIGGERS, Trigger
from gateway.testing.backend import Backend, Check, named
from gateway.testing.bad_input import BAD_INPUT
from gateway.testing.fallback_contract import stands_in
from gateway.testing.provider_contract import CHECKS
from gateway.testing.trial import COLUMNS
from plugins.providers.trial import BACKENDS, BEDROCK_WITH_A_KEY

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("backend", [*BACKENDS, BEDROCK_WITH_A_KEY], ids=named)
@pytest.mark.parametrize("check", CHECKS, ids=named)
async def test_004_33_the_contract_holds(backend: Backend, check: Check) -> None:
    await check(backend)


@pytest.mark.parametrize("backend", BACKENDS, ids=named)
@pytest.mark.parametrize("trigger", TRIGGERS)
async def test_004_35_every_provider_stands_in(backend: Backend, trigger: Trigger) -> None:
    await stands_in(backend, trigger)


def test_a_trial_is_of_every_check_once() -> None:
    checks = [check for column in COLUMNS.values() for check in column]
    assert sorted(map(named, checks)) == sorted(map(named, (*CHECKS, *BAD_INPUT)))
