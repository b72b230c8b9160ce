"""Routing: from a model's name to the provider that serves it, and to what it costs."""

from gateway.routing.agents import MAIN, Agents, Profile, check_agents, check_channels
from gateway.routing.catalog import converses
from gateway.routing.facts import ModelFacts, Rates
from gateway.routing.fallback import TRIGGERS, Failure, Fallback, exhausted
from gateway.routing.fitting import unfit, within
from gateway.routing.models import Known, Models, Route, usual
from gateway.routing.prices import Prices, Tariff
from gateway.routing.standby import stand_by
from gateway.routing.starting import first_model

__all__ = [
    "MAIN",
    "TRIGGERS",
    "Agents",
    "Failure",
    "Fallback",
    "Known",
    "ModelFacts",
    "Models",
    "Prices",
    "Profile",
    "Rates",
    "Route",
    "Tariff",
    "check_agents",
    "check_channels",
    "converses",
    "exhausted",
    "first_model",
    "stand_by",
    "unfit",
    "usual",
    "within",
]
