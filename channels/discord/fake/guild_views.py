"""Guilds, the application and the greeting of the gateway, as the platform writes them."""

from __future__ import annotations

from typing import Any, Final

from channels.discord.fake.clock import stamp
from channels.discord.fake.nouns import PRIVATE_THREAD, Guild
from channels.discord.fake.views import Views
from channels.discord.fake.world import World

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
    """Writes guilds, and what the platform says of the application. ``privileged`` is what it may read."""

    def __init__(self, world: World, views: Views, privileged: frozenset[str]) -> None:
        self._world = world
        self._views = views
        self._privileged = privileged

    def guild(self, guild: Guild) -> dict[str, Any]:
        """A guild object."""
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
        """A guild as an interaction mentions it."""
        return {"id": str(guild.id), "features": [], "locale": "en-US"}

    def listed(self, guild: Guild) -> dict[str, Any]:
        """A guild in the list of the bot's guilds."""
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
        """What the gateway says of a guild when it becomes available: all that is in it."""
        rooms = [room for room in self._world.channels.values() if room.guild == guild.id]
        bot = self._world.bot.id
        threads = [
            room
            for room in rooms
            if room.thread is not None
            and not room.thread.archived
            and (room.kind != PRIVATE_THREAD or bot in room.thread.members)
            and self._world.may(room, "VIEW_CHANNEL")
        ]
        return {
            **self.guild(guild),
            "joined_at": stamp(guild.made),
            "large": False,
            "unavailable": False,
            "member_count": len(guild.members),
            "members": [self._views.member(guild, self._world.users[user]) for user in guild.members],
            "channels": [self._views.channel(room) for room in rooms if room.thread is None],
            "threads": [self._views.channel(room) for room in threads],
            "presences": [],
            "voice_states": [],
            "stage_instances": [],
            "guild_scheduled_events": [],
            "soundboard_sounds": [],
        }

    def flags(self) -> int:
        """The application's flags."""
        return sum(flag for name, flag in PRIVILEGED.items() if name in self._privileged)

    def application(self) -> dict[str, Any]:
        """The application object, with what only its owner sees."""
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
            "verify_key": "0" * 64,
            "flags": self.flags(),
            "flags_new": str(self.flags()),
            "redirect_uris": [],
            "interactions_endpoint_url": None,
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
        """The first event of a session."""
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
    """Whether what happens in a guild (or in no guild) is told on a shard."""
    return ((guild or 0) >> 22) % shard[1] == shard[0] if guild else shard[0] == 0
