"""What the pure halves of a channel cost: reading recorded payloads, and rendering a long answer.

Prints one line of JSON: for each platform microseconds of the slowest payload to read, and of the same one to
be decoded from JSON; of rendering an answer of 4,000 characters, in prose and full of markup, and of only
parsing its Markdown.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from channels.discord import parse as discord
from channels.discord import render as discord_render
from channels.discord.options import Options as DiscordOptions
from channels.discord.parse import Chat, Interaction, read
from channels.discord.parse import Message as DiscordMessage
from channels.slack import parse as slack
from channels.slack import render as slack_render
from channels.telegram import parse as telegram
from channels.telegram import render as telegram_render
from gateway import Message, TextPart
from gateway.markdown import parse_markdown

T = TypeVar("T")
PAYLOADS = Path(__file__).parent.parent / "channels"
_ROUNDS, _CALLS = 15, 40
_SENTENCE = (
    "The **lighthouse** keeper of night {0} wrote down every ship that passed, with `name`, course and hour; "
    "see [the log](https://example.org/{0}) for the rest of it, and *do not* forget the fog & its <horn>. "
)
_PROSE = "Night {0}: a ship passed, and the keeper wrote down its name, its course and the hour. "
_MARKUP = (
    "## Night {0}\n\n" + _SENTENCE * 2 + "\n\n" + _PROSE * 4 + "\n\n" + _SENTENCE * 2 + "\n\n"
    "1. first the lamp of {0}, then the clock\n2. the oil, which is heavy\n3. at last the **door**\n\n"
    "```python\n" + "for ship in ships({0}):\n    print(ship.name, ship.hour)\n" * 6 + "```\n\n"
)


@dataclass
class Craft:
    """One platform. Microseconds."""

    parse: float
    decode: float
    prose: float
    prose_parsed: float
    markup: float
    markup_parsed: float
    payload: str
    """Which one is the slowest to read."""


def prose(number: int) -> Message:
    """Four thousand characters of paragraphs; those of each number are others."""
    return _message((_PROSE * 6 + "\n\n") * 9, number)


def markup(number: int) -> Message:
    """Four thousand characters with all that models write; those of each number are others."""
    return _message(_MARKUP * 3, number)


def _message(template: str, number: int) -> Message:
    text = template.format(number)[:4000]
    return Message(id="a", session_id="s", role="assistant", parts=(TextPart(text),))


def micros(call: Callable[[T], object], given: Callable[[int], T]) -> float:
    """Microseconds of a call when nothing disturbs it: the best of some rounds. Each is given something."""
    best = float("inf")
    for turn in range(_ROUNDS):
        things = [given(turn * _CALLS + number) for number in range(_CALLS)]
        begun = time.perf_counter()
        for thing in things:
            call(thing)
        best = min(best, time.perf_counter() - begun)
    return best / _CALLS * 1e6


def payloads(platform: str) -> Mapping[str, Any]:
    """What was recorded of a platform, by name."""
    return {
        path.stem: json.loads(path.read_text()) for path in (PAYLOADS / platform / "payloads").glob("*.json")
    }


def of_telegram(raw: Any) -> object:
    """Read an update."""
    return telegram.parse_update(raw, _BOT)


def of_slack(raw: Any) -> object:
    """Read a delivery."""
    return slack.parse(raw, _RULES, 1_795_000_000_000_000)


def of_discord(raw: Any) -> object:
    """Read a message or an interaction."""
    if "author" in raw:
        said = read(raw, DiscordMessage)
        return discord.inbound(said, _CHAT, _PROFILE), discord.pointed(said, _PROFILE)
    if "application_id" in raw and "token" in raw:
        return discord.from_command(read(raw, Interaction), _CHAT, _PROFILE)
    return None


def slack_pages(message: Message) -> object:
    """Pages with their blocks, which are made when a page is sent."""
    pages = slack_render.pages(message, final=True)
    return [
        (slack_render.blocks(p.markdown), slack_render.notification_text(p.markdown))
        for p in pages
        if isinstance(p, slack_render.Text)
    ]


_BOT = telegram.BotIdentity(channel="telegram", id=123456789, username="fake_bot", commands={"help": "help"})
_RULES = slack.Rules(channel="slack", team="T1", bot_user="U1")
_PROFILE = discord.BotProfile(
    "discord", "1", DiscordOptions.model_validate({"token": "t"}), frozenset({"help"})
)
_CHAT = Chat("5", "dm")
PARSERS: Mapping[str, Callable[[Any], object]] = {
    "telegram": of_telegram,
    "discord": of_discord,
    "slack": of_slack,
}
RENDERERS: Mapping[str, Callable[[Message], object]] = {
    "telegram": lambda message: telegram_render.pages_of(message, final=True),
    "discord": lambda message: discord_render.pages(message, discord_render.Style(6, True), final=True),
    "slack": slack_pages,
}


def craft(platform: str) -> Craft:
    """Measure one platform."""
    recorded = payloads(platform)
    costs = {name: micros(PARSERS[platform], lambda _, name=name: recorded[name]) for name in recorded}
    slowest = max(costs, key=lambda name: costs[name])
    text = json.dumps(recorded[slowest])
    return Craft(
        parse=costs[slowest],
        decode=micros(json.loads, lambda _: text),
        prose=micros(RENDERERS[platform], prose),
        prose_parsed=micros(parse_markdown, lambda number: prose(-1 - number).text),
        markup=micros(RENDERERS[platform], markup),
        markup_parsed=micros(parse_markdown, lambda number: markup(-1 - number).text),
        payload=slowest,
    )


if __name__ == "__main__":
    print(json.dumps({platform: asdict(craft(platform)) for platform in PARSERS}), flush=True)
