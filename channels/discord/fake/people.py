"""The users of the platform: what tests do as users, and what they see."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from channels.discord.fake.chats import Rooms, emoji_from
from channels.discord.fake.gateway import Event, Tell
from channels.discord.fake.interactions import CHAT, MESSAGE, USER, Commands, Interactions
from channels.discord.fake.limits import Figures
from channels.discord.fake.messages import attached, find, mentioned
from channels.discord.fake.payloads import GuildViews, Views
from channels.discord.fake.state import (
    DEFAULT,
    PRIVATE_THREAD,
    PUBLIC_THREAD,
    REPLY,
    VOICE_MESSAGE,
    Channel,
    Interaction,
    Mentions,
    Message,
    Permission,
    Reference,
    Room,
    User,
    World,
    bits,
)

_LONGEST = 4000
_DAY_MINUTES = 1440


class People:
    """People, by name; a name that is new is a new person. Rooms go by id or by name: ``general``.

    Everything raises LookupError for what does not exist, as a person cannot do it.
    """

    def __init__(self, world: World, views: Views, guilds: GuildViews, figures: Figures, tell: Tell) -> None:
        self._world = world
        self._guilds = guilds
        self._tell = tell
        self._rooms = Rooms(world, views, tell)
        self._interactions = Interactions(world, views, guilds, figures, tell)
        self._commands = Commands(world, figures)

    # What can be seen.

    @property
    def mention(self) -> str:
        """Return the text that addresses the bot."""
        return f"<@{self._world.bot.id}>"

    def messages(self, chat: Room) -> Sequence[Message]:
        """Return the messages of a chat, oldest first, with those that only one user sees."""
        return self._world.history(self._world.room(chat).id)

    def answers(self, chat: Room) -> list[str]:
        """Return the current texts of the bot's messages in a chat."""
        return [said.content for said in self.messages(chat) if said.author == self._world.bot.id]

    def message(self, chat: Room, key: int) -> Message:
        """One message."""
        return self._world.messages[self._world.room(chat).id][key]

    def channel(self, chat: Room) -> Channel:
        """A room."""
        return self._world.room(chat)

    def threads(self, chat: Room) -> Sequence[Channel]:
        """The threads of a channel that are not archived."""
        return self._world.threads(self._world.room(chat).id)

    def interaction(self, key: int) -> Interaction:
        """Return an interaction in its current state."""
        return self._world.interactions[key]

    def failed(self, key: int) -> bool:
        """Return whether a user reads "The application did not respond"."""
        return self._interactions.failed(self._world.interactions[key])

    def response(self, key: int) -> str:
        """Return how far the bot has answered an interaction, such as ``waiting`` or ``answered``."""
        return self._world.interactions[key].state

    def is_typing(self, chat: Room) -> bool:
        """Return whether the bot is shown as typing."""
        return self._rooms.is_typing(self._world.room(chat), self._world.bot)

    def user(self, name: str) -> User:
        """A person by name."""
        return self._world.user(name)

    async def until(self, true: Callable[[], bool], seconds: float = 10) -> None:
        """Return as soon as something is true on the platform. Raises TimeoutError."""
        await self._world.changes.until(true, seconds)

    # What people do.

    def say(
        self,
        chat: Room,
        text: str,
        user: str = "ada",
        *,
        reply_to: int | None = None,
        attach: Mapping[str, bytes] | None = None,
        spoken: bool = False,
    ) -> int:
        """A person writes; ``attach`` are files by name, or if ``spoken`` a voice message. Returns its id."""
        if len(text) > _LONGEST:
            raise ValueError(f"people can write {_LONGEST} characters, not {len(text)}")
        channel, author = self._world.room(chat), self._world.user(user)
        found = self._mentioned(text, channel)
        given = [attached(self._world.ids.new(), name, data) for name, data in (attach or {}).items()]
        if spoken:
            given = [replace(file, duration_secs=1.0, waveform="AAAA") for file in given]
        message = Message(
            id=self._world.ids.new(),
            channel=channel.id,
            author=author.id,
            at=self._world.clock.now(),
            flags=VOICE_MESSAGE if spoken else 0,
            content=text.strip(),
            kind=DEFAULT if reply_to is None else REPLY,
            attachments=tuple(given),
            mentions=found,
        )
        if reply_to is not None:
            other = self.message(channel, reply_to)
            pinged = Mentions((*found.users, other.author), found.roles, found.everyone)
            reference = Reference(other.id, channel.id, channel.guild)
            message = replace(message, reference=reference, mentions=pinged)
        return self._rooms.post(message).id

    def edit(self, chat: Room, key: int, text: str) -> None:
        """A person changes what they wrote."""
        message = self.message(chat, key)
        found = self._mentioned(text, self._world.room(chat))
        self._rooms.change(replace(message, content=text.strip(), mentions=found))

    def delete(self, chat: Room, key: int) -> None:
        """Delete a message as a user."""
        self._rooms.remove(self.message(chat, key))

    def react(self, chat: Room, key: int, sign: str, user: str = "ada", *, on: bool = True) -> None:
        """A person puts a sign under a message, or takes it away."""
        self._rooms.react(self.message(chat, key), emoji_from(sign), self._world.user(user), on=on)

    def type(self, chat: Room, user: str = "ada") -> None:
        """A person begins to write."""
        self._rooms.type(self._world.room(chat), self._world.user(user))

    def slash(
        self, chat: Room, command: str, options: Mapping[str, Any] | None = None, user: str = "ada"
    ) -> int:
        """A person types a command: ``ask``, or ``admin ban`` for one in a group. Returns the interaction."""
        channel, names = self._world.room(chat), command.removeprefix("/").split()
        found = self._commands.named(names[0], CHAT, channel.guild)
        return self._interactions.type(found, names, options or {}, self._world.user(user), channel)

    def pick(self, chat: Room, command: str, target: User | int, user: str = "ada") -> int:
        """A person picks a command from the menu of a person, or of a message by its id."""
        channel = self._world.room(chat)
        kind = USER if isinstance(target, User) else MESSAGE
        found = self._commands.named(command, kind, channel.guild)
        aimed = target if isinstance(target, User) else self.message(channel, target)
        return self._interactions.pick(found, self._world.user(user), channel, aimed)

    def press(
        self, chat: Room, key: int, custom_id: str, user: str = "ada", *, values: Sequence[str] = ()
    ) -> int:
        """A person presses a button, or chooses ``values`` from a menu. Returns the interaction."""
        message = self.message(chat, key)
        if message.reader not in (None, self._world.user(user).id):
            raise LookupError("only its reader sees this message")
        component = find(message.components, custom_id)
        return self._interactions.press(component, values, self._world.user(user), message)

    def start_thread(self, chat: Room, name: str, user: str = "ada", *, at: int | None = None) -> int:
        """A person starts a thread, at a message or beside the others. Returns its id."""
        parent = self._world.room(chat)
        starter = None if at is None else self.message(parent, at)
        person = self._world.user(user)
        return self._rooms.start_thread(
            parent, name, person, kind=PUBLIC_THREAD, minutes=_DAY_MINUTES, starter=starter
        ).id

    def archive(self, thread: Room, *, archived: bool = True, locked: bool = False) -> None:
        """A thread goes into the archive, or comes out of it."""
        self._rooms.change_thread(self._world.room(thread), archived=archived, locked=locked)

    # How the platform is furnished.

    def dm(self, user: str = "ada") -> int:
        """The direct conversation of a person with the bot."""
        return self._world.dm(self._world.user(user)).id

    def refuse_dms(self, user: str = "ada") -> None:
        """A person takes no direct messages any more."""
        self._world.refusing.add(self._world.user(user).id)

    def add_guild(self, name: str) -> int:
        """The bot is invited to one more guild."""
        guild = self._world.add_guild(name)
        self._tell(Event(name="GUILD_CREATE", data=self._guilds.created(guild), guild=guild.id))
        return guild.id

    def add_channel(self, name: str, guild: int | None = None) -> int:
        """A new text channel, in the first guild if none is named."""
        key = guild or next(iter(self._world.guilds))
        return self._rooms.add_channel(self._world.add_channel(name, self._world.guilds[key])).id

    def add_private_thread(self, chat: Room, name: str, user: str = "ada") -> int:
        """A thread that only those see who were invited; the bot was not."""
        person = self._world.user(user)
        parent = self._world.room(chat)
        return self._rooms.start_thread(
            parent, name, person, kind=PRIVATE_THREAD, minutes=_DAY_MINUTES, starter=None
        ).id

    def remove_channel(self, chat: Room) -> None:
        """Delete a channel or a thread as a user."""
        self._rooms.remove_channel(self._world.room(chat))

    def forbid(self, chat: Room, *names: Permission) -> None:
        """The bot may not do this in a channel any more."""
        channel = self._world.room(chat)
        self._rooms.change_channel(replace(channel, denied=channel.denied | bits(*names)))

    def permit(self, chat: Room, *names: Permission) -> None:
        """The bot may do this in a channel again."""
        channel = self._world.room(chat)
        self._rooms.change_channel(replace(channel, denied=channel.denied & ~bits(*names)))

    def promote(self, *names: Permission) -> None:
        """The bot's role gets more permissions in every guild."""
        for guild in list(self._world.guilds.values()):
            everyone, role, *rest = guild.roles
            role = replace(role, permissions=role.permissions | bits(*names))
            self._world.put_guild(replace(guild, roles=(everyone, role, *rest)))

    def _mentioned(self, text: str, channel: Channel) -> Mentions:
        found = mentioned(text)
        users = tuple(user for user in found.users if user in self._world.users)
        return Mentions(users, found.roles, found.everyone and channel.guild is not None)
