"""The page of the fake Discord, and what its control interface can do."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from channels.discord.fake.payloads import Views
from channels.discord.fake.state import Channel, Message, World
from gateway.testing.fake_platform import Control

if TYPE_CHECKING:
    from channels.discord.fake.server import FakeDiscord

_IDS: Final = ("key", "reply_to", "at")


def control_of(fake: FakeDiscord, world: World) -> Control:
    """Return the page and the control interface of a fake."""
    people = (fake.say, fake.edit, fake.delete, fake.react, fake.type, fake.slash, fake.press, fake.pick)
    people = (*people, fake.response)
    rooms = (fake.start_thread, fake.archive, fake.dm, fake.add_channel, fake.add_guild, fake.refuse_dms)
    rooms = (*rooms, fake.forbid, fake.permit, fake.remove_channel, fake.add_private_thread)
    trouble = (fake.slow_down, fake.advance, fake.sever, fake.freeze, fake.close, fake.ask_reconnect)
    trouble = (*trouble, fake.invalidate, fake.expire_sessions, fake.deliver_raw)
    views = fake.views

    def state(most: int) -> Mapping[str, Any]:
        return {
            "bot": views.user(world.bot),
            "people": [views.user(user) for user in world.users.values()],
            "rooms": [
                {**_room(world, views, room, most), "bot_types": fake.is_typing(room)}
                for room in world.channels.values()
            ],
            "commands": [{"kind": command.kind, **command.body} for command in world.commands.values()],
            "bots": len(fake.gateway.connections),
        }

    folder = Path(__file__).with_name("page")
    return Control(fake, folder, state, (*people, *rooms, *trouble), _argument)


def _room(world: World, views: Views, channel: Channel, most: int) -> dict[str, Any]:
    person = world.users.get(channel.recipient or 0)
    return {
        **views.channel(channel),
        "title": f"@{person.name}" if person is not None else channel.name,
        "messages": [_message(world, views, message) for message in world.history(channel.id)[-most:]],
    }


def _message(world: World, views: Views, message: Message) -> dict[str, Any]:
    reader = world.users.get(message.reader or 0)
    name = None if reader is None else reader.name
    return {**views.message(message), "versions": message.versions, "reader": name}


def _argument(name: str, value: Any) -> Any:
    if name in _IDS and value is not None:
        return int(value)
    if name == "attach" and value is not None:
        return {file: base64.b64decode(data, validate=True) for file, data in value.items()}
    return value
