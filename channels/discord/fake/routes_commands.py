"""Calls that register the application's commands."""

from __future__ import annotations

from collections.abc import Mapping

from channels.discord.fake.calls import Answer, ApiCall, Handler
from channels.discord.fake.commands import Commands
from channels.discord.fake.errors import MISSING_ACCESS, NOT_YOUR_APPLICATION, ApiError
from channels.discord.fake.world import World


class CommandRoutes:
    """Handles calls about commands, for all guilds and for one."""

    def __init__(self, world: World, commands: Commands) -> None:
        self._world = world
        self._commands = commands

    def handlers(self) -> Mapping[str, Handler]:
        """The calls that are handled here."""
        found: dict[str, Handler] = {}
        for prefix in ("/applications/{application_id}", "/applications/{application_id}/guilds/{guild_id}"):
            found |= {
                f"GET {prefix}/commands": self._list,
                f"PUT {prefix}/commands": self._replace,
                f"POST {prefix}/commands": self._create,
                f"GET {prefix}/commands/{{command_id}}": self._get,
                f"PATCH {prefix}/commands/{{command_id}}": self._change,
                f"DELETE {prefix}/commands/{{command_id}}": self._delete,
            }
        return found

    def _list(self, call: ApiCall) -> Answer:
        found = self._commands.of(self._place(call))
        return Answer(200, [self._commands.view(command) for command in found])

    def _replace(self, call: ApiCall) -> Answer:
        stored = self._commands.replace(call.body or [], self._place(call))
        return Answer(200, [self._commands.view(command) for command in stored])

    def _create(self, call: ApiCall) -> Answer:
        command, new = self._commands.put(call.body, self._place(call))
        return Answer(201 if new else 200, self._commands.view(command))

    def _get(self, call: ApiCall) -> Answer:
        command = self._commands.get(call.id("command_id"), self._place(call))
        return Answer(200, self._commands.view(command))

    def _change(self, call: ApiCall) -> Answer:
        command = self._commands.get(call.id("command_id"), self._place(call))
        return Answer(200, self._commands.view(self._commands.change(command, call.body or {})))

    def _delete(self, call: ApiCall) -> Answer:
        self._commands.remove(self._commands.get(call.id("command_id"), self._place(call)))
        return Answer()

    def _place(self, call: ApiCall) -> int | None:
        if call.id("application_id") != self._world.bot.id:
            raise ApiError(NOT_YOUR_APPLICATION)
        if "guild_id" not in call.path:
            return None
        guild = call.id("guild_id")
        if guild not in self._world.guilds:
            raise ApiError(MISSING_ACCESS)
        return guild
