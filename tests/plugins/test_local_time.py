"""The plugin ``local_time``: the system prompt has the date of the configured zone."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from gateway import PluginError
from gateway.testing.chat import chatting
from plugins.local_time import LocalTime

NEW_YEAR = datetime(2026, 12, 31, 23, 30, tzinfo=UTC)


def at_new_year(zone: ZoneInfo) -> datetime:
    return NEW_YEAR.astimezone(zone)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, "The local date is Thursday, 2026-12-31 (UTC, UTC+0000)."),
        ({"zone": "Europe/Oslo"}, "The local date is Friday, 2027-01-01 (Europe/Oslo, UTC+0100)."),
        (
            {"zone": "Europe/Oslo", "clock": True},
            "The local date is Friday, 2027-01-01, 00:30 (Europe/Oslo, UTC+0100).",
        ),
    ],
)
async def test_the_model_is_given_the_date(
    tmp_path: Path, settings: dict[str, object], sentence: str
) -> None:
    async with chatting(tmp_path, LocalTime(at_new_year), plugins={"local_time": settings}) as chat:
        await chat.say("Which day is it?")
        prompt = chat.model.calls[0].options.system_prompt or ""
    assert prompt.endswith(sentence)


async def test_an_unknown_zone_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(PluginError) as caught:
        async with chatting(tmp_path, LocalTime(), plugins={"local_time": {"zone": "Europe/Mars"}}):
            pass
    assert (
        'plugins.local_time.zone = "Europe/Mars" is not a time zone; use an IANA name such as "Europe/Oslo"'
        in str(caught.value)
    )
