"""How long the platforms take replies to a message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from channels import discord, slack, telegram
from gateway.channel import Address, LimitsReplies
from gateway.testing.chat import chatting

CASES = [
    (telegram, {"token": "1:x"}, Address("telegram", "1", "business:con:42"), 24 * 3600),
    (telegram, {"token": "1:x"}, Address("telegram", "1", "42", reply_to="7"), None),
    (discord, {"token": "x"}, Address("discord", "1", "42", reply_to="9:token"), 15 * 60),
    (discord, {"token": "x"}, Address("discord", "1", "42", reply_to="9"), None),
    (
        slack,
        {"bot_token": "xoxb-1", "app_token": "xapp-1"},
        Address("slack", "1", "C1", reply_to="https://x/y#U1"),
        1800,
    ),
    (
        slack,
        {"bot_token": "xoxb-1", "app_token": "xapp-1"},
        Address("slack", "1", "C1", reply_to="1700000000.0001"),
        None,
    ),
]


@pytest.mark.parametrize(("platform", "options", "address", "seconds"), CASES)
async def test_a_platform_says_how_long_it_takes_replies(
    tmp_path: Path, platform: Any, options: dict[str, Any], address: Address, seconds: float | None
) -> None:
    async with chatting(tmp_path) as chat:
        channel = platform.create(chat.host, address.channel, platform.Options(**options))
        assert isinstance(channel, LimitsReplies)
        assert channel.reply_window(address) == seconds
