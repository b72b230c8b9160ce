"""Replies to a plugin's process."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class Reply(Struct, frozen=True):
    """A result with an open descriptor, which is closed after it was sent."""

    value: Any
    fd: int | None = None
