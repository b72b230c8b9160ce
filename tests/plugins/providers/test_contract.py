"""Every provider, held to the same contract against a server that speaks its protocol and its quirks."""

from __future__ import annotations

from functools import partial

import msgspec
import pytest

from gateway import Provider, ProviderConfig
from gateway.models import TRIGGERS, Trigger
from gateway.provider_http import create_provider
from gateway.testing.contracts.bad_input import BAD_INPUT
from gateway.testing.contracts.fallback_contract import check_fallback
from gateway.testing.contracts.provider_contract import CHECKS
from gateway.testing.contracts.provider_setup import Check, ProviderSetup, named
from gateway.testing.contracts.trial import COLUMNS
from gateway.testing.fake_models.openai_wire import ResponsesDialect
from plugins.providers.candidates import BEDROCK_WITH_A_KEY, PROVIDER_SETUPS
from plugins.providers.openai.adapter import CompletionsAdapter
from plugins.providers.openai.profiles import profile_of
from tests.plugins.providers.at_once import check_all

pytestmark = pytest.mark.slow


def create_with_responses(config: ProviderConfig) -> Provider:
    """Make a provider that calls every model in the Responses protocol."""
    profile = msgspec.structs.replace(profile_of(config), responses=".")
    return create_provider(CompletionsAdapter(profile, config.capabilities_or(profile.capabilities)), config)


RESPONSES = ProviderSetup("openai", create_with_responses, ResponsesDialect())


@pytest.mark.parametrize("check", CHECKS, ids=named)
async def test_004_33_the_contract_holds(check: Check) -> None:
    await check_all(check, [*PROVIDER_SETUPS, BEDROCK_WITH_A_KEY, RESPONSES])


@pytest.mark.parametrize("trigger", TRIGGERS)
async def test_004_35_every_provider_stands_in(trigger: Trigger) -> None:
    await check_all(partial(check_fallback, trigger=trigger), PROVIDER_SETUPS)


def test_a_trial_is_of_every_check_once() -> None:
    checks = [check for column in COLUMNS.values() for check in column]
    assert sorted(map(named, checks)) == sorted(map(named, (*CHECKS, *BAD_INPUT)))
