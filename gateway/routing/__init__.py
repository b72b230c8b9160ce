"""Routing: from a model's name to the provider that serves it, and to what it costs."""

from gateway.routing.fallback import TRIGGERS, Failure, Fallback, exhausted
from gateway.routing.models import Models, Route, first_model
from gateway.routing.prices import Prices

__all__ = [
    "TRIGGERS",
    "Failure",
    "Fallback",
    "Models",
    "Prices",
    "Route",
    "exhausted",
    "first_model",
]
