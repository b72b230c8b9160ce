"""The date in the system prompt, so that the model knows what "today" and "next Friday" mean.

In: ``[plugins.local_time]``. Out: one line at the end of each system prompt. The plugin loader imports it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from zoneinfo import ZoneInfo

from pydantic import BaseModel, Field, field_validator

from gateway import Plugin, PluginContext, TurnContext


class LocalTimeSettings(BaseModel):
    """The settings of the plugin."""

    zone: str = Field(default="UTC", description="IANA time zone, such as Europe/Oslo; default UTC")
    clock: bool = Field(
        default=False,
        description="Add the time of day. The prompt then changes every minute, so that providers cannot "
        "cache it; default false",
    )

    @field_validator("zone")
    @classmethod
    def _known(cls, zone: str) -> str:
        try:
            ZoneInfo(zone)
        except (KeyError, ValueError, OSError):
            raise ValueError('is not a time zone; use an IANA name such as "Europe/Oslo"') from None
        return zone


class LocalTime(Plugin):
    """A line with the date, the weekday and the time zone at the end of the system prompt."""

    name = "local_time"
    settings_model = LocalTimeSettings

    def __init__(self, now: Callable[[ZoneInfo], datetime] = datetime.now) -> None:
        """``now`` returns the current time in a zone."""
        self._now = now
        self._zone = ZoneInfo("UTC")
        self._format = ""

    async def activate(self, ctx: PluginContext) -> None:
        """Read the settings."""
        settings = ctx.options(LocalTimeSettings)
        self._zone = ZoneInfo(settings.zone)
        self._format = "%A, %Y-%m-%d, %H:%M" if settings.clock else "%A, %Y-%m-%d"

    async def transform_system_prompt(self, prompt: str, ctx: TurnContext) -> str:
        """Add the date at the end: providers cache the part of a prompt before the first difference."""
        now = self._now(self._zone)
        return f"{prompt}\n\nThe local date is {now:{self._format}} ({self._zone.key}, UTC{now:%z}).".lstrip()


plugin = LocalTime()
