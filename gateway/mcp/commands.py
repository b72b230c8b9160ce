"""Prompts of servers as commands: ``/NAME_prompt ARG…`` sends a text that the server makes to the model."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from functools import partial

import structlog
from msgspec import Struct

from gateway.contract.errors import PluginError, ToolError
from gateway.contract.plugin import CommandContext, Intercept, SlashCommand, UserInput
from gateway.extensions.deadlines import paused
from gateway.mcp.definitions import Prompt, command_name
from gateway.mcp.server import Server
from gateway.plugin_services.bundles import PromptTurns, assigned

log = structlog.get_logger("trunkline.mcp")

_NAMED = re.compile(r"(?<!\S)([\w-]+)=(?:\"([^\"]*)\"|'([^']*)'|(\S+))")


class _Command(Struct, frozen=True):
    """A prompt of a server, with the name of its command."""

    name: str
    server: Server
    prompt: Prompt

    @property
    def usage(self) -> str:
        """The command as a user types it."""
        words = (f"<{n}>" if required else f"[{n}]" for n, required in self.prompt.arguments.items())
        return " ".join((f"/{self.name}", *words))

    async def expand(self, rest: str) -> str | None:
        """Return the text for what follows the command; None if it does not fit. Raises ToolError."""
        given = arguments_of(self.prompt, rest)
        return None if given is None else await self.server.prompt(self.prompt.name, given)


class PromptCommands:
    """The commands for the prompts of all servers. Their texts count as content from outside."""

    def __init__(self) -> None:
        self.commands: Sequence[SlashCommand] = ()
        self._of: Sequence[_Command] = ()
        self._turns = PromptTurns()

    def rebuild(self, servers: Iterable[Server], taken: Collection[str]) -> None:
        """Replace the list of commands, leaving out those whose name is taken."""
        found: dict[str, _Command] = {}
        for server in servers:
            for prompt in server.known.prompts if server.settings.enabled else ():
                name = command_name(server.name, prompt.name)
                if name in taken or name in found:
                    log.warning(
                        "a prompt of an MCP server is left out: another command has its name",
                        server=server.name,
                        prompt=prompt.name,
                        name=name,
                    )
                else:
                    found[name] = _Command(name, server, prompt)
        self._of = tuple(found.values())
        self.commands = tuple(
            SlashCommand(
                each.name,
                each.prompt.description or f"Send a text of {each.server.name}",
                partial(_show, each),
            )
            for each in self._of
        )

    async def transform(self, text: str) -> UserInput | None:
        """Replace a typed command by the text of its prompt."""
        typed = self._turns.typed(text, self.commands)
        if typed is None:
            return None
        command = self._of[typed[0]]
        try:
            with paused():  # the server may have to start; it has its own time limit
                made = await command.expand(typed[1])
        except (ToolError, PluginError) as error:
            return Intercept(f"/{command.name} failed: {error}")
        if made == "":
            return Intercept(f"/{command.name} failed: the MCP server {command.server.name!r} sent no text")
        return self._turns.answer(command.name, command.usage, made)

    def begin(self) -> None:
        """Let the tools of an answer ask if its question is the text of a server."""
        self._turns.begin()


def arguments_of(prompt: Prompt, rest: str) -> dict[str, str] | None:
    """Return the arguments in a text: ``name=value``, and the others in order. None if they do not fit."""
    given: dict[str, str] = {}

    def take(found: re.Match[str]) -> str:
        if found[1] not in prompt.arguments or found[1] in given:
            return found[0]
        given[found[1]] = "".join(filter(None, found.groups()[1:]))
        return ""

    rest = _NAMED.sub(take, rest).strip()
    left = [name for name in prompt.arguments if name not in given]
    if rest and not left:
        return None
    given |= assigned(left, rest)
    return given if all(name in given for name, required in prompt.arguments.items() if required) else None


async def _show(command: _Command, rest: str, _ctx: CommandContext) -> str:
    """Show the text where no model answers. Raises ToolError."""
    return await command.expand(rest) or f"Usage: {command.usage}"
