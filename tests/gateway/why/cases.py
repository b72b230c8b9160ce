"""A gateway with a platform that fails on demand, and what every face says about its messages."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, create_engine
from typer.testing import CliRunner

from gateway.cli import app as trunkline
from gateway.contract.channel import (
    Address,
    InboundMessage,
    MessageLink,
    OutboundMessage,
    Placed,
    PlacementDeferred,
    Receipt,
    Sender,
    SessionKey,
    Signal,
)
from gateway.contract.messages import now_ms
from gateway.contract.plugin import (
    Intercept,
    Pass,
    Plugin,
    PluginContext,
    ToolBlock,
    ToolCall,
    TurnContext,
    UserInput,
)
from gateway.contract.provider import ToolDefinition
from gateway.contract.questions import Question
from gateway.contract.tool import Tool, ToolContext
from gateway.store import schema as t
from gateway.store.writes import Write
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.polling_channel import PollingChannel
from gateway.testing.polling_platform import PollingPlatform
from gateway.testing.served import Served, serving, until

_AGE = Write("update", 40, t.inbox, "id received_at")
LINK = re.compile(r"https://line\.example/(\w+)/(\d+)")
Found = dict[str, Any]


class Line(PollingChannel):
    """A platform that has links to messages. While it is limited, the attic takes no message.

    The kiosk takes replies for 90 minutes, the post for three days.
    """

    is_limited = False

    def read_link(self, link: str) -> MessageLink | None:
        found = LINK.fullmatch(link)
        return None if found is None else MessageLink(found[1], found[2], f"{found[1]}:{found[2]}")

    async def send(self, outbound: OutboundMessage) -> Placed:
        if outbound.address.chat == "attic" and self.is_limited:
            raise PlacementDeferred("slow down", 600)
        return await super().send(outbound)

    def reply_window(self, address: Address) -> float | None:
        return 90 * 60.0 if address.chat == "kiosk" else 3 * 86_400.0 if address.chat == "post" else None

    async def ask_question(self, question: Question) -> Placed:
        return Placed("0")


class Pier(Plugin):
    """Registers the line, a tool that has to be approved, and a hook that keeps some messages."""

    name = "pier"
    channel: type[Line] = Line

    def __init__(self, platform: PollingPlatform) -> None:
        self.platform = platform

    async def activate(self, ctx: PluginContext) -> None:
        assert ctx.channels is not None

        async def no_cursors(_channel: str) -> list[Any]:
            return []

        self.line = self.channel(self.platform.url, no_cursors)
        ctx.channels.register(self.line)

    async def transform_user_input(self, text: str, ctx: TurnContext) -> UserInput:
        return Intercept("") if text == "secret" else Pass()

    def tools(self) -> Sequence[Tool]:
        async def open_door(_arguments: object, _context: ToolContext) -> str:
            return "open"

        def match_key(arguments: Mapping[str, Any]) -> str:
            return str(arguments.get("which", ""))

        definition = ToolDefinition("door", "Opens.", {"type": "object"})
        return [Tool(definition=definition, execute=open_door, match_key=match_key)]

    async def before_tool_exec(self, call: ToolCall, ctx: TurnContext) -> ToolCall | ToolBlock:
        return ToolBlock("It is stuck.") if call.arguments.get("which") == "back" else call


class Case:
    """A served gateway with the line. ``write`` sends a message of a user, as the platform would."""

    def __init__(self, served: Served, platform: PollingPlatform, config: Path, pier: Pier) -> None:
        self.served = served
        self.pier = pier
        self.platform = platform
        self.config = config
        self.number = 100

    async def write(
        self, text: str, user: str = "ada", chat: str = "kitchen", *signals: Signal, **fields: Any
    ) -> Receipt:
        self.number += 1
        number, group = self.number, fields.pop("group", False)
        receive = self.served.gateway.parts.intake.receiver("line")
        key = f"{chat}:{number}"
        message = InboundMessage(
            session=str(SessionKey("line", "bot", chat)),
            dedup_key=key,
            address=Address("line", "bot", chat, reply_to=str(number), group=group),
            sender=Sender(user, name=f"Name of {user}"),
            text=text,
            order=number,
            **fields,
        )
        return (await receive(message, signals=signals))[0]

    async def aged(self, message_id: str, days: float) -> None:
        """Let a message have been received some days earlier."""
        await self.served.gateway.parts.store.write(
            (_AGE, (message_id, now_ms() - round(days * 86_400_000))),
        )

    async def settled(self) -> None:
        await until(lambda: self.served.gateway.parts.dispatcher.waiting == 0)

    async def why(self, given: str, lang: str = "en") -> Found:
        status, found = await self.served.ask("GET", f"/api/why/{quote(given, safe='')}?lang={lang}")
        assert status == 200, found
        return found

    async def until(self, given: str, code: str) -> Found:
        """Return the explanation once its verdict has a code."""
        async with asyncio.timeout(60):
            while (found := await self.why(given))["verdict"]["code"] != code:
                await asyncio.sleep(0.02)
        return found

    async def told(self, given: str, user: str = "ada", chat: str = "kitchen", **fields: Any) -> str:
        """Return the reply to /why."""
        before = len(self.platform.answers(chat))
        await self.write(f"/why {given}".strip(), user, chat, **fields)
        await until(lambda: len(self.platform.answers(chat)) > before)
        return self.platform.answers(chat)[-1]

    async def printed(self, *arguments: str) -> str:
        """Return what the command line prints."""
        command = ["why", *arguments, "--config", str(self.config)]
        return (await asyncio.to_thread(CliRunner().invoke, trunkline, command)).output


@asynccontextmanager
async def line(
    tmp_path: Path, fake: FakeModels, engine: Mapping[str, Any] | None = None, **settings: Any
) -> AsyncGenerator[Case]:
    """Serve a gateway with the line. ``engine`` are settings of its database, besides those of ``store``."""
    if engine:
        settings["store"] = {**engine["store"], **settings.get("store", {})}
    pier = settings.pop("pier", Pier)
    channels = settings.pop("channels", {"line": {"allow": ["ada", "ben"]}})
    async with (
        PollingPlatform() as platform,
        serving(
            tmp_path / "data", made := pier(platform), fake=fake, channels=channels, **settings
        ) as served,
    ):
        config = tmp_path / "trunkline.toml"
        port = served.url.rpartition(":")[2]
        store = f'[store]\nurl = "{engine["store"]["url"]}"\n' if engine else ""
        config.write_text(f'data_dir = "{tmp_path / "data"}"\n[server]\nport = {port}\n{store}')
        yield Case(served, platform, config, made)


def texts(found: Found) -> list[str]:
    return [station["text"] for station in found["stations"]]


def kinds(found: Found) -> list[str]:
    return [action["kind"] for action in found["verdict"]["actions"]]


@contextmanager
def database(engine: Mapping[str, Any], tmp_path: Path) -> Generator[Connection]:
    """Open the database of a gateway, which may be stopped, in one transaction."""
    url = engine["store"]["url"] if engine else f"sqlite:///{tmp_path}/data/trunkline.db"
    opened = create_engine(url)
    try:
        with opened.begin() as connection:
            yield connection
    finally:
        opened.dispose()
