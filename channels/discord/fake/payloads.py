"""JSON objects of the fake: users, guilds, channels and messages as Discord writes them."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import quote

from channels.discord.fake.state import (
    DM,
    FORUM,
    FORUMS,
    HAS_THREAD,
    PRIVATE_THREAD,
    REPLY,
    Attachment,
    Channel,
    Emoji,
    Guild,
    Interaction,
    Json,
    Message,
    Origin,
    Reaction,
    Role,
    User,
    World,
    stamp,
)

_OVERWRITE_MEMBER = 1


class Views:
    """Writer of JSON objects. ``files_url`` is the URL of files, ``secret`` signs the links to them."""

    def __init__(self, world: World, link_life: float) -> None:
        self._world = world
        self._link_life = link_life
        self._secret = b"links of a fake"
        self.files_url = ""

    def user(self, user: User) -> dict[str, Any]:
        """Return a user object."""
        return {
            "id": str(user.id),
            "username": user.name,
            "discriminator": "4242" if user.bot else "0",
            "global_name": None if user.bot else user.name.capitalize(),
            "avatar": None,
            "avatar_decoration_data": None,
            "banner": None,
            "accent_color": None,
            "bot": user.bot,
            "public_flags": 0,
            "flags": 0,
            "primary_guild": None,
        }

    def myself(self) -> dict[str, Any]:
        """Return the bot's own user object."""
        return {
            **self.user(self._world.bot),
            "mfa_enabled": True,
            "locale": "en-US",
            "premium_type": 0,
            "email": None,
            "verified": True,
        }

    def member(self, guild: Guild, user: User, *, whole: bool = True) -> dict[str, Any]:
        """Return a member object; ``whole=False`` leaves out the user, as in a message."""
        roles = [str(role.id) for role in guild.roles if role.managed] if user.bot else []
        roles += [str(role) for role in guild.given.get(user.id, ())]
        member = {
            "avatar": None,
            "banner": None,
            "communication_disabled_until": None,
            "flags": 0,
            "joined_at": stamp(guild.made),
            "nick": guild.nicks.get(user.id),
            "pending": False,
            "premium_since": None,
            "roles": roles,
            "mute": False,
            "deaf": False,
        }
        return {**member, "user": self.user(user)} if whole else member

    def role(self, role: Role, position: int) -> dict[str, Any]:
        """Return a role object."""
        return {
            "id": str(role.id),
            "name": role.name,
            "description": None,
            "permissions": str(role.permissions),
            "position": position,
            "color": 0,
            "colors": {"primary_color": 0, "secondary_color": None, "tertiary_color": None},
            "hoist": False,
            "managed": role.managed,
            "mentionable": not role.managed,
            "icon": None,
            "unicode_emoji": None,
            "flags": 0,
            **({"tags": {"bot_id": str(self._world.bot.id)}} if role.managed else {}),
        }

    def channel(self, channel: Channel) -> dict[str, Any]:
        """Return a channel object of any kind."""
        last = None if channel.last_message is None else str(channel.last_message)
        common = {"id": str(channel.id), "type": channel.kind, "flags": 0, "last_message_id": last}
        if channel.kind == DM:
            recipient = self._world.users[channel.recipient or 0]
            return {**common, "recipients": [self.user(recipient)]}
        common |= {
            "guild_id": str(channel.guild),
            "name": channel.name,
            "parent_id": None if channel.parent is None else str(channel.parent),
            "rate_limit_per_user": channel.slowmode,
            "last_pin_timestamp": None,
        }
        return {**common, **(self._text(channel) if channel.thread is None else self._thread(channel))}

    def _text(self, channel: Channel) -> dict[str, Any]:
        overwrite = {
            "id": str(self._world.bot.id),
            "type": _OVERWRITE_MEMBER,
            "allow": "0",
            "deny": str(channel.denied),
        }
        view: dict[str, Any] = {
            "topic": channel.topic,
            "position": channel.position,
            "nsfw": False,
            "permission_overwrites": [overwrite] if channel.denied else [],
        }
        if channel.kind in FORUMS:
            view |= {"available_tags": [], "default_reaction_emoji": None, "default_sort_order": None}
        return {**view, "default_forum_layout": 0} if channel.kind == FORUM else view

    def _thread(self, channel: Channel) -> dict[str, Any]:
        state = channel.thread
        assert state is not None
        metadata = {
            "archived": state.archived,
            "archive_timestamp": stamp(state.changed),
            "auto_archive_duration": state.minutes,
            "locked": state.locked,
            "create_timestamp": stamp(state.made),
        }
        view: dict[str, Any] = {
            "owner_id": str(channel.owner),
            "thread_metadata": metadata,
            "message_count": state.count,
            "member_count": min(50, len(state.members)),
            "total_message_sent": state.total,
        }
        if self._world.bot.id in state.members:
            view["member"] = self.thread_member(channel, self._world.bot)
        return view

    def thread_member(self, channel: Channel, user: User) -> dict[str, Any]:
        """Return the member object of a thread."""
        made = channel.thread.made if channel.thread is not None else 0
        return {
            "id": str(channel.id),
            "user_id": str(user.id),
            "join_timestamp": stamp(made),
            "flags": 0,
        }

    def attachment(self, channel: int, attachment: Attachment, *, ephemeral: bool = False) -> dict[str, Any]:
        """Return an attachment object, with signed links."""
        url = self.link(channel, attachment)
        view: dict[str, Any] = {
            "id": str(attachment.id),
            "filename": attachment.filename,
            "size": len(attachment.data),
            "url": url,
            "proxy_url": url,
            "content_type": attachment.content_type,
        }
        if attachment.title is not None:
            view["title"] = attachment.title
        if attachment.description is not None:
            view["description"] = attachment.description
        if attachment.width is not None:
            view |= {"width": attachment.width, "height": attachment.height}
        if attachment.waveform is not None:
            view |= {"duration_secs": attachment.duration_secs, "waveform": attachment.waveform}
        return {**view, "ephemeral": True} if ephemeral else view

    def link(self, channel: int, attachment: Attachment) -> str:
        """Return a signed URL of a file."""
        now = int(self._world.clock.now())
        issued, expires = f"{now:x}", f"{int(now + self._link_life):x}"
        path = f"attachments/{channel}/{attachment.id}/{quote(attachment.filename)}"
        signature = self.signature(attachment.id, expires, issued)
        return f"{self.files_url}/{path}?ex={expires}&is={issued}&hm={signature}&"

    def signature(self, attachment: int, expires: str, issued: str) -> str:
        """Return the signature that makes a link to a file valid."""
        return hmac.digest(self._secret, f"{attachment}/{expires}/{issued}".encode(), "sha256").hex()

    def emoji(self, emoji: Emoji) -> dict[str, Any]:
        """Return a partial emoji object."""
        return {"id": None if emoji.id is None else str(emoji.id), "name": emoji.name}

    def reaction(self, reaction: Reaction) -> dict[str, Any]:
        """Return the count of a reaction."""
        return {
            "emoji": self.emoji(reaction.emoji),
            "count": len(reaction.users),
            "count_details": {"burst": 0, "normal": len(reaction.users)},
            "burst_colors": [],
            "me_burst": False,
            "burst_me": False,
            "burst_count": 0,
            "me": self._world.bot.id in reaction.users,
        }

    def message(self, message: Message, *, redacted: bool = False, nested: bool = False) -> dict[str, Any]:
        """Return a message object; a redacted one lacks the content that a bot may not read."""
        hidden = redacted and self.hides(message)
        mentioned = [self.user(self._world.users[user]) for user in message.mentions.users]
        files = [
            self.attachment(message.channel, file, ephemeral=message.ephemeral)
            for file in message.attachments
        ]
        view: dict[str, Any] = {
            "id": str(message.id),
            "channel_id": str(message.channel),
            "author": self.user(self._world.users[message.author]),
            "type": message.kind,
            "content": "" if hidden else message.content,
            "timestamp": stamp(message.at),
            "edited_timestamp": None if message.edited is None else stamp(message.edited),
            "tts": message.tts,
            "mention_everyone": message.mentions.everyone,
            "mentions": mentioned,
            "mention_roles": [str(role) for role in message.mentions.roles],
            "attachments": [] if hidden else files,
            "embeds": [] if hidden else list(message.embeds),
            "components": [] if hidden else list(message.components),
            "pinned": False,
            "flags": message.flags,
        }
        if message.reactions:
            view["reactions"] = [self.reaction(reaction) for reaction in message.reactions]
        if message.hook:
            view["webhook_id"] = str(self._world.bot.id)
            view["application_id"] = str(self._world.bot.id)
        if message.origin is not None:
            view |= self._origin(message.origin, message)
        if message.flags & HAS_THREAD and (thread := self._world.channels.get(message.id)) is not None:
            view["thread"] = self.channel(thread)
        if message.stickers and not hidden:
            view["sticker_items"] = [
                {"id": str(index), "name": name, "format_type": 1}
                for index, name in enumerate(message.stickers)
            ]
        if message.poll is not None and not hidden:
            view["poll"] = message.poll
        if message.reference is not None:
            view |= self._reference(message, redacted=redacted, nested=nested)
        if message.forwarded and not hidden:
            view["message_snapshots"] = [{"message": self._snapshot(one)} for one in message.forwarded]
        return view

    def _snapshot(self, message: Message) -> dict[str, Any]:
        """Return what a forwarded message shows of its original: neither its id nor its author."""
        whole = self.message(message, nested=True)
        shown = "type content mentions mention_roles attachments embeds timestamp edited_timestamp flags"
        return {key: whole[key] for key in (*shown.split(), "components", "sticker_items") if key in whole}

    def hides(self, message: Message) -> bool:
        """Return whether the content of a message needs the intent to read message content."""
        if self._world.channels[message.channel].guild is None or message.author == self._world.bot.id:
            return False
        return self._world.bot.id not in message.mentions.users

    def _reference(self, message: Message, *, redacted: bool, nested: bool) -> dict[str, Any]:
        reference = message.reference
        assert reference is not None
        payload: dict[str, Any] = {"type": reference.kind, "channel_id": str(reference.channel)}
        if reference.message is not None:
            payload["message_id"] = str(reference.message)
        if reference.guild is not None:
            payload["guild_id"] = str(reference.guild)
        view: dict[str, Any] = {"message_reference": payload}
        if message.kind >= REPLY and not nested:
            other = self._world.messages.get(reference.channel, {}).get(reference.message or 0)
            view["referenced_message"] = (
                None if other is None else self.message(other, redacted=redacted, nested=True)
            )
        return view

    def _origin(self, origin: Origin, message: Message) -> dict[str, Any]:
        user = self.user(self._world.users[origin.user])
        owner = "0" if origin.guild is None else str(origin.guild)
        metadata: dict[str, Any] = {
            "id": str(origin.id),
            "type": origin.kind,
            "user": user,
            "authorizing_integration_owners": {"0": owner},
        }
        if origin.pressed is not None:
            metadata["interacted_message_id"] = str(origin.pressed)
        if origin.target_user is not None:
            metadata["target_user"] = self.user(self._world.users[origin.target_user])
        if origin.target_message is not None:
            metadata["target_message_id"] = str(origin.target_message)
        if origin.command is None:
            return {"interaction_metadata": metadata}
        metadata["name"] = origin.command
        said = {"id": str(origin.id), "type": origin.kind, "name": origin.command, "user": user}
        return {"interaction_metadata": metadata, "interaction": said}

    def roles(self, guild: Guild) -> Sequence[Json]:
        """Return the role objects of a guild."""
        return [self.role(role, position) for position, role in enumerate(guild.roles)]

    def interaction_origin(self, interaction: Interaction) -> Origin:
        """Return the part of a message that names the interaction it answers."""
        return Origin(
            id=interaction.id,
            kind=interaction.kind,
            user=interaction.user,
            command=interaction.command,
            guild=interaction.guild,
            target_user=interaction.target_user,
            target_message=interaction.target_message,
            pressed=interaction.pressed,
        )


PRIVILEGED: Final = {"MESSAGE_CONTENT": 1 << 19, "GUILD_MEMBERS": 1 << 15, "GUILD_PRESENCES": 1 << 13}
"""What an application may be allowed to read, and the flag that says so of one in few guilds."""

_NOTHING = (
    "afk_channel_id application_id banner description discovery_splash home_header hub_type icon "
    "incidents_data public_updates_channel_id rules_channel_id safety_alerts_channel_id splash "
    "system_channel_id vanity_url_code widget_channel_id max_presences latest_onboarding_question_id"
)
_ZERO = (
    "default_message_notifications explicit_content_filter mfa_level nsfw_level premium_tier "
    "system_channel_flags verification_level premium_subscription_count"
)


class GuildViews:
    """Writer of guild and application objects. ``privileged`` are the application's privileged intents."""

    def __init__(self, world: World, views: Views, privileged: frozenset[str]) -> None:
        self._world = world
        self._views = views
        self._privileged = privileged
        self.public_key: Callable[[], str] = lambda: "0" * 64
        self.endpoint_url: str | None = None

    def guild(self, guild: Guild) -> dict[str, Any]:
        """Return a guild object."""
        return {
            **dict.fromkeys(_NOTHING.split()),
            **dict.fromkeys(_ZERO.split(), 0),
            "id": str(guild.id),
            "name": guild.name,
            "owner_id": str(guild.owner),
            "features": [],
            "emojis": [],
            "stickers": [],
            "roles": list(self._views.roles(guild)),
            "afk_timeout": 300,
            "max_members": 500_000,
            "max_video_channel_users": 25,
            "max_stage_video_channel_users": 50,
            "nsfw": False,
            "preferred_locale": "en-US",
            "premium_progress_bar_enabled": False,
            "region": "deprecated",
            "widget_enabled": False,
        }

    def partial(self, guild: Guild) -> dict[str, Any]:
        """Return the guild object of an interaction."""
        return {"id": str(guild.id), "features": [], "locale": "en-US"}

    def listed(self, guild: Guild) -> dict[str, Any]:
        """Return the guild object of the list of the bot's guilds."""
        return {
            "id": str(guild.id),
            "name": guild.name,
            "icon": None,
            "banner": None,
            "owner": False,
            "permissions": str(guild.roles[1].permissions),
            "features": [],
        }

    def created(self, guild: Guild) -> dict[str, Any]:
        """Return the data of GUILD_CREATE: the guild with members, channels and active threads."""
        chats = [chat for chat in self._world.channels.values() if chat.guild == guild.id]
        bot = self._world.bot.id
        threads = [
            chat
            for chat in chats
            if chat.thread is not None
            and not chat.thread.archived
            and (chat.kind != PRIVATE_THREAD or bot in chat.thread.members)
            and self._world.may(chat, "VIEW_CHANNEL")
        ]
        return {
            **self.guild(guild),
            "joined_at": stamp(guild.made),
            "large": False,
            "unavailable": False,
            "member_count": len(guild.members),
            "members": [self._views.member(guild, self._world.users[user]) for user in guild.members],
            "channels": [self._views.channel(chat) for chat in chats if chat.thread is None],
            "threads": [self._views.channel(chat) for chat in threads],
            "presences": [],
            "voice_states": [],
            "stage_instances": [],
            "guild_scheduled_events": [],
            "soundboard_sounds": [],
        }

    def flags(self) -> int:
        """Return the flags of the application."""
        return sum(flag for name, flag in PRIVILEGED.items() if name in self._privileged)

    def application(self) -> dict[str, Any]:
        """Return the application object."""
        bot = self._world.bot
        return {
            "id": str(bot.id),
            "name": bot.name,
            "icon": None,
            "description": "",
            "type": None,
            "bot": self._views.user(bot),
            "bot_public": True,
            "bot_require_code_grant": False,
            "verify_key": self.public_key(),
            "flags": self.flags(),
            "flags_new": str(self.flags()),
            "redirect_uris": [],
            "interactions_endpoint_url": self.endpoint_url,
            "role_connections_verification_url": None,
            "owner": self._views.user(self._world.owner),
            "approximate_guild_count": len(self._world.guilds),
            "approximate_user_install_count": 0,
            "approximate_user_authorization_count": 0,
            "event_webhooks_status": 1,
            "explicit_content_filter": 0,
            "team": None,
            "eligible_oauth2_scopes": [],
            "integration_types_config": {"0": {}},
            "tags": [],
        }

    def ready(self, session: str, shard: tuple[int, int], resume_url: str) -> dict[str, Any]:
        """Return the data of READY, the first event of a session."""
        return {
            "v": 10,
            "user": self._views.myself(),
            "user_settings": {},
            "session_type": "normal",
            "session_id": session,
            "resume_gateway_url": resume_url,
            "shard": list(shard),
            "relationships": [],
            "private_channels": [],
            "presences": [],
            "guilds": [
                {"id": str(guild), "unavailable": True}
                for guild in self._world.guilds
                if on_shard(guild, shard)
            ],
            "guild_join_requests": [],
            "geo_ordered_rtc_regions": [],
            "auth": {},
            "application": {"id": str(self._world.bot.id), "flags": self.flags()},
            "_trace": ["fake"],
        }


def on_shard(guild: int | None, shard: tuple[int, int]) -> bool:
    """Return whether a shard receives the events of a guild, or of direct messages (None)."""
    return ((guild or 0) >> 22) % shard[1] == shard[0] if guild else shard[0] == 0
