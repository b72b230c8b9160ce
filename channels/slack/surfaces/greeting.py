"""Greeting of users who open the app: a heading, and prompts to choose from."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from time import monotonic

from channels.slack.api import Displays
from gateway.channel import Address, InboundMessage

_AGAIN_SECONDS = 600.0
"""Time after which prompts are set again where the app is opened."""
_MOST_PLACES = 1_000
_LONGEST_TITLE = 80
_PROMPTS, _TITLE = "assistant.threads.setSuggestedPrompts", "assistant.threads.setTitle"


class Greeting:
    """Suggested prompts in one workspace, and titles of threads that users start by opening the app.

    ``prompts`` maps the label of each prompt to the message that it sends.
    """

    def __init__(
        self,
        displays: Displays,
        heading: str,
        prompts: Mapping[str, str],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._displays = displays
        self._heading = heading
        self._prompts = [{"title": label, "message": message} for label, message in prompts.items()]
        self._clock = clock
        self._shown: OrderedDict[tuple[str, str | None], float] = OrderedDict()
        self._untitled: OrderedDict[tuple[str, str | None], bool] = OrderedDict()

    async def show(self, chat: str, thread: str | None) -> None:
        """Show the prompts in a thread, or at the top of a chat; not again within ten minutes."""
        place, now = (chat, thread), self._clock()
        if thread is not None:
            self._untitled[place] = True
            if len(self._untitled) > _MOST_PLACES:
                self._untitled.popitem(last=False)
        if not self._prompts or self._shown.get(place, -_AGAIN_SECONDS) > now - _AGAIN_SECONDS:
            return
        self._shown[place] = now
        if len(self._shown) > _MOST_PLACES:
            self._shown.popitem(last=False)
        heading = self._heading or None
        if not await self._displays.show(
            _PROMPTS, channel_id=chat, thread_ts=thread, title=heading, prompts=self._prompts
        ):
            self._shown.pop(place, None)

    def awaits_title(self, address: Address) -> bool:
        """Return whether a message begins the conversation in a thread that began with the greeting."""
        return (address.chat, address.thread) in self._untitled

    async def name_thread(self, message: InboundMessage) -> None:
        """Give a thread the title of its first message."""
        self._untitled.pop((message.address.chat, message.address.thread), None)
        await self.show_title(message.address, message.text)

    async def show_title(self, address: Address, title: str) -> None:
        """Show the title of a conversation, if Slack can: in a thread of a chat with one user."""
        title = " ".join(title.split())
        if len(title) > _LONGEST_TITLE:
            title = f"{title[: _LONGEST_TITLE - 1].rstrip()}…"
        if title and address.thread is not None and not address.group:
            await self._displays.show(_TITLE, channel_id=address.chat, thread_ts=address.thread, title=title)
