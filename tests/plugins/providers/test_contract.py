"""Every provider, held to the same contract against a server that speaks its protocol and its quirks."""

from __future__ import annotations

import pytest

from gateway.testing.backend import Backend, Check, named
from gateway.testing.bad_input import BAD_INPUT
from gateway.testing.provider_contract import CHECKS
from gateway.testing.trial import COLUMNS
from plugins.providers.trial import BACKENDS, BEDROCK_WITH_A_KEY


@pytest.mark.parametrize("backend", [*BACKENDS, BEDROCK_WITH_A_KEY], ids=named)
@pytest.mark.parametrize("check", CHECKS, ids=named)
async def test_004_33_the_contract_holds(backend: Backend, check: Check) -> None:
    await check(backend)


def test_a_trial_is_of_every_check_once() -> None:
    checks = [check for column in COLUMNS.values() for check in column]
    assert sorted(map(named, checks)) == sorted(map(named, (*CHECKS, *BAD_INPUT)))
