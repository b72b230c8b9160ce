"""Routing: from a model's name to the provider that serves it, and to what it costs."""

from gateway.routing.models import Models, Route, first_model
from gateway.routing.prices import Prices

__all__ = ["Models", "Prices", "Route", "first_model"]
