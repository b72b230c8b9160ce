"""Home tab of the app: for its users their settings and the commands, for others how to get access."""

from __future__ import annotations

import time
from collections import OrderedDict
from time import monotonic

from channels.slack.api import Displays, Json
from channels.slack.manifest import command_name, offered
from channels.slack.parse import user_id_of
from channels.slack.render import BUTTONS, TABLE, blocks
from gateway.channel import Host, InboundMessage

_AGAIN_SECONDS = 10.0
"""Time after which the tab of a user is made again when it is opened."""
_MOST_USERS = 1_000
_LONGEST_PART = 3_000
_NO_ACCESS = (
    "You may not use this bot yet. Write it a message: it replies with a code. Send the code to the operator "
    "of the bot or to one of its admins, who can admit you."
)


class HomeTab:
    """Home tabs of the users of one workspace. ``prefix`` is that of the slash commands."""

    def __init__(self, displays: Displays, host: Host, channel: str, prefix: str) -> None:
        self._displays = displays
        self._host = host
        self._channel = channel
        self._prefix = prefix
        self._shown: OrderedDict[str, float] = OrderedDict()

    async def show(self, visitor: InboundMessage) -> None:
        """Show the tab to a user as it is now; not again within ten seconds."""
        user, now = user_id_of(visitor.sender.id), monotonic()
        if self._shown.get(user, now - _AGAIN_SECONDS) > now - _AGAIN_SECONDS:
            return
        self._shown[user] = now
        self._shown.move_to_end(user)
        if len(self._shown) > _MOST_USERS:
            self._shown.popitem(last=False)
        view = {"type": "home", "blocks": await self._blocks(visitor)}
        if not await self._displays.show("views.publish", user_id=user, view=view):
            self._shown.pop(user, None)

    async def _blocks(self, visitor: InboundMessage) -> list[Json]:
        role = await self._host.role(self._channel, visitor)
        if role is None:
            return [_header("No access"), *_text(_NO_ACCESS)]
        found: list[Json] = []
        status = await self._host.preview("status", self._channel, visitor)
        found += [_header("This chat"), *_text(status or f"- model `{self._host.model_of(self._channel)}`")]
        usage = await self._host.preview("usage", self._channel, visitor)
        found += [_header("Usage"), *_text(usage)] if usage else []
        usable = [one for one in self._host.commands() if role == "admin" or not one.admin]
        lines = [f"- `/{command_name(name, self._prefix)}` {words}" for name, words in offered(usable)]
        return [*found, _header("Commands"), *_text("\n".join(lines)), _time()]


def _header(text: str) -> Json:
    return {"type": "header", "text": {"type": "plain_text", "text": text}}


def _text(markdown: str) -> list[Json]:
    return blocks(markdown[:_LONGEST_PART], {TABLE, BUTTONS})


def _time() -> Json:
    """Return a line with the time, which Slack shows in the time zone of the user."""
    now = int(time.time())
    fallback = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(now))
    date = {
        "type": "date",
        "timestamp": now,
        "format": "As of {date_short_pretty} {time}",
        "fallback": fallback,
    }
    return {"type": "rich_text", "elements": [{"type": "rich_text_section", "elements": [date]}]}
