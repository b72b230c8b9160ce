"""Inline mode: a user types a question after the bot's name in any chat, and can send the answer there.

Telegram asks again after a few characters. Only the newest query of a user is answered, after a short pause
in which no newer one came. Queries are ephemeral: they are not accepted, and a restart forgets them.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import structlog

from channels.telegram.render import cut, styled
from channels.telegram.updates.objects import InlineQuery
from channels.telegram.updates.received import BotIdentity
from gateway.channel import Address, InboundMessage, Sender, SessionKey

log = structlog.get_logger("trunkline.telegram")

_PAUSE = 0.7
"""Seconds without a newer query of the user after which a query is answered."""
_SECONDS, _MAX_TOKENS = 8.0, 4_096
"""Limits of an answer, with the model's reasoning: Telegram drops a query after some seconds."""
_CACHE_SECONDS = 300
_MAX_CACHED, _MAX_USERS = 200, 8
_MAX_ANSWER, _MAX_TITLE, _MAX_DESCRIPTION = 2_000, 60, 200
_START = {"text": "Start the bot to ask it here", "start_parameter": "inline"}

Result = Mapping[str, Any]


class InlineQueries:
    """Answers the inline queries of one bot.

    ``may_ask`` returns whether the sender of a message may use the bot, ``ask`` the answer to one within some
    seconds and tokens, and ``call`` makes a call of the Bot API.
    """

    def __init__(
        self,
        bot: BotIdentity,
        tasks: asyncio.TaskGroup,
        may_ask: Callable[[InboundMessage], Awaitable[bool]],
        ask: Callable[[InboundMessage, float, int], Awaitable[str]],
        call: Callable[..., Awaitable[None]],
    ) -> None:
        self._bot = bot
        self._tasks = tasks
        self._may_ask = may_ask
        self._ask = ask
        self._call = call
        self._running: dict[int, asyncio.Task[None]] = {}
        self._cached: OrderedDict[tuple[int, str], tuple[float, Sequence[Result]]] = OrderedDict()

    def take(self, query: InlineQuery) -> None:
        """Begin to answer a query, in place of an earlier one of the same user."""
        user = query.sender.id
        if (earlier := self._running.pop(user, None)) is not None:
            earlier.cancel()
        if len(self._running) >= _MAX_USERS:
            log.warning("an inline query is not answered, because too many users ask at once")
            return
        task = self._running[user] = self._tasks.create_task(self._answer_safely(query))
        task.add_done_callback(lambda done: self._forget(user, done))

    def _forget(self, user: int, done: asyncio.Task[None]) -> None:
        if self._running.get(user) is done:
            del self._running[user]

    async def _answer_safely(self, query: InlineQuery) -> None:
        try:
            await self._answer(query)
        except Exception:
            log.exception("could not answer an inline query")

    async def _answer(self, query: InlineQuery) -> None:
        text = " ".join(query.query.split())
        message = self._message(query, text)
        if not await self._may_ask(message):
            await self._respond(query, (), button=_START)
        elif not text or text.startswith("/"):
            await self._respond(query, ())
        else:
            await self._respond(query, await self._results(query.sender.id, text, message))

    async def _results(self, user: int, text: str, message: InboundMessage) -> Sequence[Result]:
        now = asyncio.get_running_loop().time()
        until, results = self._cached.get((user, text), (0.0, ()))
        if now < until:
            return results
        await asyncio.sleep(_PAUSE)
        answer = await self._ask(message, _SECONDS, _MAX_TOKENS)
        results = (_article(answer),) if answer.strip() else ()
        if results:
            self._cached.pop((user, text), None)
            self._cached[user, text] = now + _CACHE_SECONDS, results
            if len(self._cached) > _MAX_CACHED:
                self._cached.popitem(last=False)
        return results

    async def _respond(self, query: InlineQuery, results: Sequence[Result], **more: Any) -> None:
        # An empty result is not cached: access may be granted, and a failure may pass.
        cache = _CACHE_SECONDS if results else 0
        given = {"results": [*results], "cache_time": cache, "is_personal": True, **more}
        await self._call("answerInlineQuery", inline_query_id=query.id, **given)

    def _message(self, query: InlineQuery, text: str) -> InboundMessage:
        """Return a query as a message of its user, with the rules of the user's private chat."""
        bot, user = self._bot, query.sender
        return InboundMessage(
            session=str(SessionKey(bot.channel, str(bot.id), "inline", None, str(user.id))),
            dedup_key=f"inline:{query.id}",
            address=Address(bot.channel, str(bot.id), str(user.id)),
            sender=Sender(str(user.id), user.name, user.username),
            text=text.replace("\0", "\ufffd"),
        )


def _article(answer: str) -> Result:
    """Return an answer as a result that a user can send."""
    shown = styled(cut(answer.strip(), _MAX_ANSWER))
    title, _, rest = shown.text.partition("\n")
    content = {"message_text": shown.text, "entities": [*shown.entities]}
    description = rest.strip() if len(title) <= _MAX_TITLE else shown.text
    return {
        "type": "article",
        "id": blake2b(shown.text.encode(errors="replace"), digest_size=16).hexdigest(),
        "title": cut(title, _MAX_TITLE) or "Answer",
        "description": cut(description, _MAX_DESCRIPTION),
        "input_message_content": content | {"link_preview_options": {"is_disabled": True}},
    }
