"""The application's account, and calls about it, about users and guilds, and about the gateway."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from channels.discord.fake.calls import (
    UNKNOWN_MEMBER,
    UNKNOWN_USER,
    Access,
    Answer,
    ApiCall,
    ApiError,
    Handler,
)
from channels.discord.fake.limits import Figures
from channels.discord.fake.payloads import GuildViews, Views
from channels.discord.fake.state import World
from gateway.testing.fake_platform import Clock, Window


class Account:
    """The application's account: its token, its privileged intents, and its logins.

    After too many logins in a day the platform replaces the token.
    """

    def __init__(self, clock: Clock, figures: Figures, token: str, privileged: frozenset[str]) -> None:
        self.token = token
        self.privileged = privileged
        self._clock = clock
        self._figures = figures
        self._identifies = Window(clock, figures.identifies, figures.identify_window)
        self._last = float("-inf")

    def identify(self) -> bool:
        """Count a login. Returns False if it comes too soon after the one before."""
        self._identifies.count()
        now = self._clock.now()
        if now < self._last + self._figures.identify_interval:
            return False
        self._last = now
        return True

    def spend(self, identifies: int) -> None:
        """Count so many logins."""
        self._identifies.count(identifies)

    def reset(self) -> None:
        """Replace the token."""
        self.token = secrets.token_urlsafe(24)

    @property
    def remaining(self) -> int:
        """The number of logins that are left today."""
        return max(0, self._figures.identifies - self._identifies.used)

    @property
    def reset_after(self) -> float:
        """The seconds until a login is given back."""
        return self._identifies.reset_after

    @property
    def exhausted(self) -> bool:
        """Return whether there were more logins than a day allows."""
        return self._identifies.used > self._figures.identifies


class AccountRoutes:
    """Handles what a bot asks before it begins. ``gateway_url`` is where the gateway is."""

    def __init__(
        self, world: World, views: Views, guilds: GuildViews, account: Account, figures: Figures
    ) -> None:
        self.gateway_url = ""
        self._world = world
        self._views = views
        self._guilds = guilds
        self._account = account
        self._figures = figures
        self._access = Access(world)

    def handlers(self) -> Mapping[str, Handler]:
        """The calls that are handled here."""
        return {
            "GET /gateway": lambda _: Answer(200, {"url": self.gateway_url}),
            "GET /gateway/bot": lambda _: Answer(200, self._gateway()),
            "GET /users/@me": lambda _: Answer(200, self._views.myself()),
            "GET /applications/@me": lambda _: Answer(200, self._guilds.application()),
            "GET /oauth2/applications/@me": lambda _: Answer(200, self._guilds.application()),
            "GET /users/@me/guilds": lambda _: Answer(200, self._listed()),
            "GET /users/{user_id}": self._user,
            "GET /guilds/{guild_id}": self._guild,
            "GET /guilds/{guild_id}/channels": self._channels,
            "GET /guilds/{guild_id}/roles": self._roles,
            "GET /guilds/{guild_id}/members/{user_id}": self._member,
        }

    def _gateway(self) -> dict[str, Any]:
        limit = {
            "total": self._figures.identifies,
            "remaining": self._account.remaining,
            "reset_after": int(self._account.reset_after * 1000),
            "max_concurrency": 1,
        }
        return {"url": self.gateway_url, "shards": 1, "session_start_limit": limit}

    def _listed(self) -> list[dict[str, Any]]:
        return [self._guilds.listed(guild) for guild in self._world.guilds.values()]

    def _user(self, call: ApiCall) -> Answer:
        user = self._world.users.get(call.id("user_id"))
        if user is None:
            raise ApiError(UNKNOWN_USER)
        return Answer(200, self._views.user(user))

    def _guild(self, call: ApiCall) -> Answer:
        return Answer(200, self._guilds.guild(self._access.guild(call)))

    def _channels(self, call: ApiCall) -> Answer:
        guild = self._access.guild(call)
        rooms = [room for room in self._world.channels.values() if room.guild == guild.id]
        return Answer(200, [self._views.channel(room) for room in rooms if room.thread is None])

    def _roles(self, call: ApiCall) -> Answer:
        return Answer(200, list(self._views.roles(self._access.guild(call))))

    def _member(self, call: ApiCall) -> Answer:
        guild = self._access.guild(call)
        if call.id("user_id") not in guild.members:
            raise ApiError(UNKNOWN_MEMBER)
        return Answer(200, self._views.member(guild, self._world.users[call.id("user_id")]))
