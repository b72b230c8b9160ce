"""Updates of every kind that the schema knows, made up and then spoiled: none of them stops the channel."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

import channels.telegram.fake
from channels.telegram.fake import FakeTelegram
from channels.telegram.parse import Heard, Self, message_ids, parse_update
from gateway import Rejected
from tests.channels.hostile import spoiled
from tests.channels.telegram.lab import lab, until

TYPES: dict[str, str] = json.loads(
    (Path(channels.telegram.fake.__file__).parent / "schema.json").read_text()
)["types"]
KINDS = [field.partition("=")[0] for field in TYPES["Update"].split()[1:]]
ME = Self(channel="telegram", id=123456789, username="fake_bot", groups="always", commands={"help": "help"})
_DEEPEST = 5


class Inventor:
    """Makes values of the schema's types up."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice

    def update(self, kind: str) -> dict[str, Any]:
        """An update with one kind of content."""
        fields = dict(field.split("=", 1) for field in TYPES["Update"].split())
        return {"update_id": self._dice.randrange(2**31), kind: self._value(fields[kind], 0)}

    def _value(self, kinds: str, depth: int) -> Any:
        dice, kind = self._dice, self._dice.choice(kinds.partition("{")[0].split("|"))
        if kind.startswith("["):
            return [self._value(kind[1:-1], depth + 1) for _ in range(dice.randrange(3))]
        if kind.startswith('"'):
            return kind.strip('"')
        plain = {"I": dice.randrange(-(2**40), 2**40), "S": self._text(), "B": True, "F": 1.5}
        return plain[kind] if kind in plain else self._object(kind, depth)

    def _object(self, name: str, depth: int) -> Any:
        lines = TYPES.get(name, "")
        if lines and "=" not in lines:
            return self._value(lines, depth)
        made: dict[str, Any] = {}
        for field in lines.split():
            key, _, kinds = field.partition("=")
            wanted = key.endswith("!") or (depth < _DEEPEST and self._dice.random() < 0.15)
            if wanted and depth < 2 * _DEEPEST:
                made[key.rstrip("!")] = self._value(kinds, depth + 1)
        return made

    def _text(self) -> str:
        return self._dice.choice(["hello", "/help", "@fake_bot hi", "😀" * 50, "", "supergroup", "private"])


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_update_comes_it_is_read_or_set_aside(kind: str) -> None:
    dice = Random(kind)
    for _ in range(150):
        update = Inventor(dice).update(kind)
        for raw in (update, spoiled(update, dice)):
            found = parse_update(raw, ME)
            list(message_ids(raw))
            if isinstance(found, Heard):
                assert "\0" not in found.inbound.text + found.inbound.session + found.inbound.dedup_key
            if isinstance(found, Rejected):
                found.raw.encode()


async def test_whatever_updates_come_the_channel_goes_on(tmp_path: Path, fake: FakeTelegram) -> None:
    dice, chat = Random(5), fake.private()
    async with lab(tmp_path, fake, groups="always", streaming=False) as running:
        for kind in KINDS:
            for _ in range(6):
                raw = spoiled(Inventor(dice).update(kind), dice)
                if isinstance(raw, dict):
                    raw.pop("update_id", None)
                    fake.deliver_raw(raw)
        fake.say(chat, "still there?")
        await until(lambda: "You said: still there?" in fake.answers(chat))
        await until(lambda: running.gateway.health()["telegram"] == (True, ""))
        running.gateway.dispatcher.cancel()
