"""Whether a model can do what it is about to be asked for."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.errors import CapabilityError
from gateway.messages import ImagePart, Message
from gateway.routing.models import Route


def unfit(route: Route, asked: Iterable[Message]) -> CapabilityError | None:
    """Why a model must not be asked what was just said, if there is a reason.

    Pictures from before are no reason: a model that cannot see them is told that they were there.
    """
    if route.capabilities.images or not any(isinstance(part, ImagePart) for m in asked for part in m.parts):
        return None
    return CapabilityError(
        f"{route.name} cannot see images. Say it in words, or choose a model that can see: /model shows some",
        provider=route.provider.id,
    )


def within(tokens: int | None, limit: int | None) -> int | None:
    """How long an answer may be: what is wanted, and not more than the model can."""
    return tokens if tokens is None or limit is None else min(tokens, limit)
