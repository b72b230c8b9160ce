"""Users of the fake: what tests do as users, and what they can see."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from channels.discord.fake.chats import Chats, emoji_from
from channels.discord.fake.gateway import Event, Publish
from channels.discord.fake.interactions import CHAT, MESSAGE, USER, Commands, Interactions
from channels.discord.fake.limits import Figures
from channels.discord.fake.messages import attached, find, mentioned
from channels.discord.fake.payloads import GuildViews, Views
from channels.discord.fake.state import (
    DEFAULT,
    FORUM,
    FORUMS,
    MEDIA,
    PRIVATE_THREAD,
    PUBLIC_THREAD,
    REPLY,
    VOICE_MESSAGE,
    Channel,
    ChatName,
    Guild,
    Interaction,
    Json,
    Mentions,
    Message,
    Permission,
    Reference,
    Role,
    User,
    World,
    bits,
)

_LONGEST = 4000
_DAY_MINUTES = 1440


class People:
    """Actions of users. A user goes by name, and a new name makes a new user.

    A chat goes by its id or its name, such as ``general``. The methods raise LookupError for unknown things.
    """

    def __init__(
        self, world: World, views: Views, guilds: GuildViews, figures: Figures, publish: Publish
    ) -> None:
        self._world = world
        self._views = views
        self._guilds = guilds
        self._publish = publish
        self._chats = Chats(world, views, publish)
        self._interactions = Interactions(world, views, guilds, figures, publish)
        self._commands = Commands(world, figures)

    # What can be seen.

    @property
    def mention(self) -> str:
        """Return the text that addresses the bot."""
        return f"<@{self._world.bot.id}>"

    @property
    def role_mention(self) -> str:
        """Return the text that mentions the role that the first guild has for the bot."""
        guild = next(iter(self._world.guilds.values()))
        return f"<@&{next(role.id for role in guild.roles if role.managed)}>"

    def messages(self, chat: ChatName) -> Sequence[Message]:
        """Return the messages of a chat, oldest first, with those that only one user sees."""
        return self._world.history(self._world.chat(chat).id)

    def answers(self, chat: ChatName) -> list[str]:
        """Return the current texts of the bot's messages in a chat."""
        return [said.content for said in self.messages(chat) if said.author == self._world.bot.id]

    def message(self, chat: ChatName, key: int) -> Message:
        """Return a message."""
        return self._world.messages[self._world.chat(chat).id][key]

    def channel(self, chat: ChatName) -> Channel:
        """Return a channel, a thread or a direct chat."""
        return self._world.chat(chat)

    def threads(self, chat: ChatName) -> Sequence[Channel]:
        """Return the threads of a channel that are not archived."""
        return self._world.threads(self._world.chat(chat).id)

    def interaction(self, key: int) -> Interaction:
        """Return an interaction in its current state."""
        return self._world.interactions[key]

    def failed(self, key: int) -> bool:
        """Return whether a user reads "The application did not respond"."""
        return self._interactions.failed(self._world.interactions[key])

    def response(self, key: int) -> str:
        """Return how far the bot has answered an interaction, such as ``waiting`` or ``answered``."""
        return self._world.interactions[key].state

    def is_typing(self, chat: ChatName) -> bool:
        """Return whether the bot is shown as typing."""
        return self._chats.is_typing(self._world.chat(chat), self._world.bot)

    def user(self, name: str) -> User:
        """Return a user by name."""
        return self._world.user(name)

    async def until(self, true: Callable[[], bool], seconds: float = 10) -> None:
        """Wait until a condition about the platform's state is true. Raises TimeoutError."""
        await self._world.changes.until(true, seconds)

    # What people do.

    def say(
        self,
        chat: ChatName,
        text: str,
        user: str = "ada",
        *,
        reply_to: int | None = None,
        attach: Mapping[str, bytes] | None = None,
        spoken: bool = False,
        stickers: Sequence[str] = (),
        poll: tuple[str, Sequence[str]] | None = None,
    ) -> int:
        """Write a message. Returns its id.

        ``attach`` are files by name, with ``spoken`` voice messages; ``poll`` is a question with its answers.
        """
        if len(text) > _LONGEST:
            raise ValueError(f"people can write {_LONGEST} characters, not {len(text)}")
        channel, author = self._world.chat(chat), self._world.user(user)
        if channel.kind in FORUMS:
            raise LookupError("a forum has only posts")
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
            stickers=tuple(stickers),
            poll=None if poll is None else _poll(*poll),
        )
        if reply_to is not None:
            other = self.message(channel, reply_to)
            pinged = Mentions((*found.users, other.author), found.roles, found.everyone)
            reference = Reference(other.id, channel.id, channel.guild)
            message = replace(message, reference=reference, mentions=pinged)
        return self._chats.post(message).id

    def forward(self, chat: ChatName, source: ChatName, *keys: int, user: str = "ada") -> int:
        """Forward messages of a chat to another one, as one message. Returns its id."""
        channel, origin = self._world.chat(chat), self._world.chat(source)
        message = Message(
            id=self._world.ids.new(),
            channel=channel.id,
            author=self._world.user(user).id,
            at=self._world.clock.now(),
            reference=Reference(keys[0], origin.id, origin.guild, kind=1),
            forwarded=tuple(self.message(origin, key) for key in keys),
        )
        return self._chats.post(message).id

    def write_as_bot(self, chat: ChatName, bot: str, text: str, embeds: Sequence[Json] = ()) -> int:
        """Write a message of another bot. Returns its id."""
        channel, author = self._world.chat(chat), replace(self._world.user(bot), bot=True)
        self._world.users[author.id] = author
        given = tuple({"type": "rich", **embed} for embed in embeds)
        key, now = self._world.ids.new(), self._world.clock.now()
        message = Message(id=key, channel=channel.id, author=author.id, at=now, content=text, embeds=given)
        return self._chats.post(message).id

    def edit(self, chat: ChatName, key: int, text: str) -> None:
        """Edit a message."""
        message = self.message(chat, key)
        found = self._mentioned(text, self._world.chat(chat))
        self._chats.change(replace(message, content=text.strip(), mentions=found))

    def delete(self, chat: ChatName, key: int) -> None:
        """Delete a message."""
        self._chats.remove(self.message(chat, key))

    def react(self, chat: ChatName, key: int, sign: str, user: str = "ada", *, on: bool = True) -> None:
        """Add a reaction to a message, or remove it."""
        self._chats.react(self.message(chat, key), emoji_from(sign), self._world.user(user), on=on)

    def clear_reactions(self, chat: ChatName, key: int, sign: str | None = None) -> None:
        """Remove all reactions of a message, or those with one emoji, as a moderator does."""
        emoji = None if sign is None else emoji_from(sign)
        self._chats.clear_reactions(self.message(chat, key), emoji)

    def type(self, chat: ChatName, user: str = "ada") -> None:
        """Begin to type."""
        self._chats.type(self._world.chat(chat), self._world.user(user))

    def slash(
        self, chat: ChatName, command: str, options: Mapping[str, Any] | None = None, user: str = "ada"
    ) -> int:
        """Run a slash command: ``ask``, or ``admin ban`` for a subcommand. Returns the interaction's id."""
        channel, names = self._world.chat(chat), command.removeprefix("/").split()
        found = self._commands.named(names[0], CHAT, channel.guild)
        return self._interactions.type(found, names, options or {}, self._world.user(user), channel)

    def complete(
        self, chat: ChatName, command: str, typed: str, user: str = "ada", *, option: str = "text"
    ) -> int:
        """Type the value of a slash command's option. Returns the interaction's id; see ``choices``."""
        channel = self._world.chat(chat)
        found = self._commands.named(command, CHAT, channel.guild)
        return self._interactions.complete(found, option, typed, self._world.user(user), channel)

    def choices(self, key: int) -> Sequence[tuple[str, str]]:
        """Return the names and values that the bot offers for a typed option."""
        return self._world.interactions[key].choices

    def pick(self, chat: ChatName, command: str, target: User | int, user: str = "ada") -> int:
        """Run a command from the context menu of a user, or of a message id. Returns the interaction's id."""
        channel = self._world.chat(chat)
        kind = USER if isinstance(target, User) else MESSAGE
        found = self._commands.named(command, kind, channel.guild)
        aimed = target if isinstance(target, User) else self.message(channel, target)
        return self._interactions.pick(found, self._world.user(user), channel, aimed)

    def press(
        self, chat: ChatName, key: int, custom_id: str, user: str = "ada", *, values: Sequence[str] = ()
    ) -> int:
        """Press a button, or choose ``values`` from a menu. Returns the interaction's id."""
        message = self.message(chat, key)
        if message.reader not in (None, self._world.user(user).id):
            raise LookupError("only its reader sees this message")
        component = find(message.components, custom_id)
        return self._interactions.press(component, values, self._world.user(user), message)

    def start_thread(self, chat: ChatName, name: str, user: str = "ada", *, at: int | None = None) -> int:
        """Start a thread, on the message ``at`` or on none. Returns its id."""
        parent = self._world.chat(chat)
        starter = None if at is None else self.message(parent, at)
        person = self._world.user(user)
        return self._chats.start_thread(
            parent, name, person, kind=PUBLIC_THREAD, minutes=_DAY_MINUTES, starter=starter
        ).id

    def post(
        self, forum: ChatName, title: str, text: str, user: str = "ada", *, attach: Mapping[str, bytes] = {}
    ) -> int:
        """Start a post of a forum. Returns the id of its thread, which is also that of its first message."""
        channel, author, key = self._world.chat(forum), self._world.user(user), self._world.ids.new()
        if channel.kind not in FORUMS:
            raise LookupError(f"{channel.name!r} is not a forum")
        message = Message(
            id=key,
            channel=key,
            author=author.id,
            at=self._world.clock.now(),
            content=text.strip(),
            attachments=tuple(attached(self._world.ids.new(), *file) for file in attach.items()),
            mentions=self._mentioned(text, channel),
        )
        return self._chats.start_post(channel, title, author, message).id

    def archive(self, thread: ChatName, *, archived: bool = True, locked: bool = False) -> None:
        """Archive a thread or take it out of the archive; ``locked`` also locks it."""
        self._chats.change_thread(self._world.chat(thread), archived=archived, locked=locked)

    # How the platform is furnished.

    def dm(self, user: str = "ada") -> int:
        """Return the id of a user's direct chat with the bot."""
        return self._world.dm(self._world.user(user)).id

    def refuse_dms(self, user: str = "ada") -> None:
        """Make a user refuse direct messages."""
        self._world.refusing.add(self._world.user(user).id)

    def add_guild(self, name: str) -> int:
        """Add a guild with the bot. Returns its id."""
        guild = self._world.add_guild(name)
        self._publish(Event(name="GUILD_CREATE", data=self._guilds.created(guild), guild=guild.id))
        return guild.id

    def add_role(self, name: str) -> int:
        """Add a role without permissions to the first guild. Returns its id."""
        guild = next(iter(self._world.guilds.values()))
        role = Role(self._world.ids.new(), name, 0)
        self._world.put_guild(replace(guild, roles=(*guild.roles, role)))
        payload = {"guild_id": str(guild.id), "role": self._views.role(role, len(guild.roles))}
        self._publish(Event(name="GUILD_ROLE_CREATE", data=payload, guild=guild.id))
        return role.id

    def give_roles(self, user: str, *roles: int) -> None:
        """Replace the roles of a user in the first guild."""
        person = self._world.user(user)
        guild = next(iter(self._world.guilds.values()))
        self._change_member(replace(guild, given={**guild.given, person.id: roles}), person)

    def rename(self, user: str, nick: str) -> None:
        """Change the nickname of a user in the first guild."""
        person = self._world.user(user)
        guild = next(iter(self._world.guilds.values()))
        self._change_member(replace(guild, nicks={**guild.nicks, person.id: nick}), person)

    def rename_channel(self, chat: ChatName, name: str) -> None:
        """Rename a channel or a thread."""
        self._chats.change_channel(replace(self._world.chat(chat), name=name))

    def remove_from_thread(self, thread: ChatName) -> None:
        """Remove the bot from a thread."""
        self._chats.join_thread(self._world.chat(thread), self._world.bot, on=False)

    def refuse_commands(self, *names: str) -> None:
        """Refuse to register commands with these names."""
        self._commands.refused |= {*names}

    def add_channel(self, name: str, guild: int | None = None) -> int:
        """Add a text channel, by default to the first guild. Returns its id."""
        key = guild or next(iter(self._world.guilds))
        return self._chats.add_channel(self._world.add_channel(name, self._world.guilds[key])).id

    def add_forum(self, name: str, *, media: bool = False) -> int:
        """Add a forum, or a media channel, to the first guild. Returns its id."""
        guild = next(iter(self._world.guilds.values()))
        return self._chats.add_channel(self._world.add_channel(name, guild, MEDIA if media else FORUM)).id

    def add_private_thread(self, chat: ChatName, name: str, user: str = "ada") -> int:
        """Start a private thread without the bot. Returns its id."""
        person = self._world.user(user)
        parent = self._world.chat(chat)
        return self._chats.start_thread(
            parent, name, person, kind=PRIVATE_THREAD, minutes=_DAY_MINUTES, starter=None
        ).id

    def remove_channel(self, chat: ChatName) -> None:
        """Delete a channel or a thread."""
        self._chats.remove_channel(self._world.chat(chat))

    def forbid(self, chat: ChatName, *names: Permission) -> None:
        """Take permissions in a channel from the bot."""
        channel = self._world.chat(chat)
        self._chats.change_channel(replace(channel, denied=channel.denied | bits(*names)))

    def permit(self, chat: ChatName, *names: Permission) -> None:
        """Give permissions in a channel back to the bot."""
        channel = self._world.chat(chat)
        self._chats.change_channel(replace(channel, denied=channel.denied & ~bits(*names)))

    def promote(self, *names: Permission) -> None:
        """Add permissions to the bot's role in every guild."""
        for guild in list(self._world.guilds.values()):
            everyone, role, *rest = guild.roles
            role = replace(role, permissions=role.permissions | bits(*names))
            self._world.put_guild(replace(guild, roles=(everyone, role, *rest)))

    def _change_member(self, guild: Guild, user: User) -> None:
        self._world.put_guild(guild)
        payload = {**self._views.member(guild, user), "guild_id": str(guild.id)}
        self._publish(Event(name="GUILD_MEMBER_UPDATE", data=payload, guild=guild.id))

    def _mentioned(self, text: str, channel: Channel) -> Mentions:
        found = mentioned(text)
        users = tuple(user for user in found.users if user in self._world.users)
        return Mentions(users, found.roles, found.everyone and channel.guild is not None)


def _poll(question: str, answers: Sequence[str]) -> Json:
    listed = [{"answer_id": number, "poll_media": {"text": text}} for number, text in enumerate(answers, 1)]
    return {
        "question": {"text": question},
        "answers": listed,
        "expiry": None,
        "allow_multiselect": False,
        "layout_type": 1,
    }
