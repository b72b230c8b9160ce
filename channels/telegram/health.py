"""Health of the connection to Telegram: it is healthy if the last response is recent and was not an error."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from channels.telegram.api import CallError, Client, RefusedError
from channels.telegram.options import Options
from gateway.channel import Backoff, Health

log = structlog.get_logger("trunkline.telegram")

_BACKOFF = Backoff(0.5, 30)
_WRONG_TOKEN = "Telegram rejects the token; set token to the one that @BotFather shows"  # noqa: S105 - says what is wrong with it
_WRONG_TOKEN_PAUSE = 30.0
_CONFLICT_PAUSE = 3.0


class ConnectionHealth:
    """Health tracker: unhealthy after ``seconds`` without a successful response."""

    def __init__(self, channel: str, seconds: float) -> None:
        self._channel = channel
        self._seconds = seconds
        self._last: float | None = None
        self._failures = 0
        self._detail = "starting"

    def succeeded(self) -> None:
        """Record a successful response."""
        if self._failures:
            log.info("Telegram answers again", channel=self._channel)
        self._last = asyncio.get_running_loop().time()
        self._failures = 0
        self._detail = ""

    def token_rejected(self) -> None:
        """Record that the platform rejected the token, in any call."""
        if self._detail != _WRONG_TOKEN:
            log.error(_WRONG_TOKEN, channel=self._channel)
        self._detail = _WRONG_TOKEN

    def responded(self) -> None:
        """Record a response that does not prove that updates arrive."""
        self._failures = 0

    def report_problem(self, detail: str) -> None:
        """Record a problem that the platform reported in a successful response."""
        self._detail = detail

    async def failed(self, error: CallError) -> None:
        """Record a failed call, and wait before the next one with exponential backoff."""
        said, pause = _meaning(error)
        self._failures += 1
        if said != self._detail:
            log.warning("the connection to Telegram does not work", channel=self._channel, reason=said)
        self._detail = said
        if pause is None:
            pause = _BACKOFF.pause(self._failures)
        await asyncio.sleep(pause)

    def health(self) -> Health:
        """Return the health of the connection."""
        if self._detail or self._last is None:
            return Health(ok=False, detail=self._detail)
        silent = asyncio.get_running_loop().time() - self._last
        if silent > self._seconds:
            return Health(ok=False, detail=f"no answer for {silent:.0f} seconds")
        return Health(ok=True)


def _meaning(error: CallError) -> tuple[str, float | None]:
    """Return an error as text, and the seconds to wait if the error determines them."""
    if not isinstance(error, RefusedError):
        return f"no answer from Telegram: {error}", None
    if error.code == 404:
        return f"{_WRONG_TOKEN}, or correct api_base_url", _WRONG_TOKEN_PAUSE
    if error.code == 401:
        return _WRONG_TOKEN, _WRONG_TOKEN_PAUSE
    if error.retry_after is not None:
        return "Telegram asked to wait", error.retry_after
    return error.reason, _CONFLICT_PAUSE if error.code == 409 else None


async def probe(options: Options) -> Sequence[Health]:
    """Ask Telegram about the token and the webhook, for ``trunkline doctor``; changes nothing there."""
    client = Client(options.token.get_secret_value(), options.api_base_url)
    try:
        me, webhook = await client.call("getMe"), await client.call("getWebhookInfo")
    except CallError as error:
        return [Health(ok=False, detail=_meaning(error)[0])]
    about, unheard = [f"signed in as @{me.get('username')}"], ""
    if not me.get("can_read_all_group_messages"):
        about.append(
            "privacy mode is on: in groups it gets only commands, mentions and replies; to change it, "
            "send /setprivacy to @BotFather, and add the bot to its groups again"
        )
        unheard = (
            "privacy mode is on: send /setprivacy to @BotFather and add the bot to its groups again, or make "
            "it an administrator of the group"
        )
    off = [
        Health(
            ok=False, detail=f"{key} is set, but the {mode} mode of the bot is off; enable it at @BotFather"
        )
        for key, mode, wanted, able in (
            ("inline", "inline", options.inline, me.get("supports_inline_queries")),
            ("business", "business", options.business, me.get("can_connect_to_business")),
        )
        if wanted and not able
    ]
    url, said = webhook.get("url"), webhook.get("last_error_message")
    if options.mode == "webhook" and url == options.webhook_url and said:
        return [Health(ok=False, detail=f"Telegram could not deliver to {url}: {said}")]
    if url and options.mode == "polling":
        about.append(f"the start removes the webhook {url}")
    return off or [Health(ok=True, detail="; ".join(about), addressed_only=unheard)]
