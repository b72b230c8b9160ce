"""Links to messages: each platform's own forms are read, and nothing that only looks like one."""

from __future__ import annotations

import pytest

from channels.discord.parse import link_of as discord
from channels.slack.parse import link_of as slack
from channels.telegram.parse import link_of as telegram
from gateway.channel import MessageLink


@pytest.mark.parametrize(
    ("link", "chat", "message", "key"),
    [
        ("https://t.me/c/1234567890/42", "-1001234567890", "42", "-1001234567890:42"),
        ("https://t.me/c/1234567890/7/42?single", "-1001234567890", "42", "-1001234567890:42"),
        ("https://discord.com/channels/11/22/33", "22", "33", "33"),
        (" https://canary.discord.com/channels/@me/22/33/ ", "22", "33", "33"),
        (
            "https://acme.slack.com/archives/C0123/p1712345678123456",
            "C0123",
            "1712345678.123456",
            "C0123:1712345678.123456",
        ),
        (
            "https://acme.slack.com/archives/D9/p1712345678123456?thread_ts=1712345678.000001&cid=D9",
            "D9",
            "1712345678.123456",
            "D9:1712345678.123456",
        ),
    ],
)
def test_links_of_platforms_name_chat_and_message(link: str, chat: str, message: str, key: str) -> None:
    found = [read(link) for read in (telegram, discord, slack)]
    assert [one for one in found if one is not None] == [MessageLink(chat, message, key)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "42",
        "https://t.me/ada/42",
        "https://t.me.example.com/c/1/2",
        "http://t.me/c/1/2",
        "https://example.com/https://t.me/c/1/2",
        "https://t.me/c/1/2/3/4",
        "https://t.me/c/-1/2",
        "https://discord.com/channels/11/22",
        "https://discord.com.example.com/channels/11/22/33",
        "https://discord.com/channels/11/22/33/44",
        "https://acme.slack.com/archives/C0123",
        "https://acme.slack.com/archives/c0123/p1712345678123456",
        "https://slack.com.example.com/archives/C0123/p1712345678123456",
        "https://acme.slack.com/archives/C0123/p17123",
    ],
)
def test_other_texts_are_not_links(text: str) -> None:
    assert [read(text) for read in (telegram, discord, slack)] == [None] * 3
