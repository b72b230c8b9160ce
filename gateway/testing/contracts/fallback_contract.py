"""The contract of fallbacks: the request of a provider after another one failed, and the answer that users
get.

A gateway runs with a provider that fails as scripted, and the one under test in its ``fallback``. For each
trigger in every phase of the first provider's answer, the request of the second ends with a message of the
user or of a tool, and the final answer is the second provider's. In tests::

    @pytest.mark.parametrize("trigger", TRIGGERS)
    async def test_it_answers_as_a_fallback(trigger: Trigger) -> None:
        await check_fallback(ProviderSetup("mine", create, MyDialect()), trigger)

A key is checked before the first byte, so it is never refused in a later phase.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

from gateway.contract.messages import Message, TextPart
from gateway.contract.plugin import Plugin, PluginContext
from gateway.contract.provider import Provider
from gateway.models import Trigger
from gateway.testing.chat import Chat, chatting
from gateway.testing.contracts.provider_setup import ProviderSetup
from gateway.testing.fake_models.script import Bytes, ModelRequest, Refusal, Reply, Say, Stall, Use
from gateway.testing.fake_models.server import FakeModels

Phase = Literal["before the first byte", "in the text", "in a tool call", "after a tool result"]
PHASES: Mapping[Trigger, Sequence[Phase]] = {
    "rate_limit": ("before the first byte", "in the text", "in a tool call", "after a tool result"),
    "auth_failure": ("before the first byte", "after a tool result"),
    "server_error": ("before the first byte", "in the text", "in a tool call", "after a tool result"),
    "stall": ("before the first byte", "in the text", "in a tool call", "after a tool result"),
}
"""The phases of an answer in which each failure can occur."""

QUESTION = "Hi"
SUM = Use("calculator", '{"expression": "2 + 2"}')
_STATUS = {"rate_limit": 429, "auth_failure": 401, "server_error": 500}
_SILENCE_MS = 250
"""Short, and no risk for what comes before the silence: it arrives together with the head."""


class Answered(NamedTuple):
    """An answer of the fallback: the phase of the failure, and whether a tool had run before."""

    phase: Phase
    answer: Message
    after_tool: bool


class _ProviderPlugin(Plugin):
    """The plugin that registers a provider."""

    name = "stand-in"

    def __init__(self, provider: Provider) -> None:
        self._provider = provider

    async def activate(self, ctx: PluginContext) -> None:
        if ctx.providers is not None:
            ctx.providers.register(self._provider)


def failing(first: FakeModels, trigger: Trigger) -> dict[str, Any]:
    """Return the settings of a gateway with one failing provider for each phase.

    Each provider fails once: after more failures the gateway would not call it any more.
    """
    reached = {"like": "openai", "base_url": first.openai_url, "api_key": "k", "max_retries": 0}
    providers = {f"first{number}": reached for number in range(len(PHASES[trigger]))}
    silence = {"stream_timeout_ms": _SILENCE_MS} if trigger == "stall" else {}
    return {"model": "first0/fake-small", "providers": providers, **silence}


async def answers(chat: Chat, first: FakeModels, trigger: Trigger, stand_in: str) -> AsyncGenerator[Answered]:
    """Let the first provider fail in each phase. Every answer must be from the fallback and name it."""
    for number, phase in enumerate(PHASES[trigger]):
        first.then(*_script(trigger, phase))
        answer = await chat.say(QUESTION, session=f"s{number}", model=f"first{number}/fake-small")
        line = f"Answering with {stand_in} instead."
        texts = [part for part in answer.parts if isinstance(part, TextPart)]
        notices = [part.content for part in texts if part.kind == "notice"]
        assert [notice.endswith(line) for notice in notices] == [True], (phase, answer)
        assert notices[0].startswith(f"first{number} "), (phase, answer)
        assert (answer.metadata.provider, answer.metadata.stop_reason) == (stand_in, "end_turn"), (
            phase,
            answer,
        )
        assert "Half" not in answer.text, (phase, answer)
        yield Answered(phase, answer, phase == "after a tool result")


async def check_fallback(setup: ProviderSetup, trigger: Trigger) -> None:
    """Check a provider over HTTP as the fallback after one trigger."""
    async with setup.running(max_retries=0) as (fake, provider), FakeModels() as first:
        with TemporaryDirectory() as folder:
            settings: dict[str, Any] = {**failing(first, trigger), "fallback": ["fake/fake-small"]}
            async with chatting(Path(folder), _ProviderPlugin(provider), **settings) as chat:
                async for phase, answer, after_tool in answers(chat, first, trigger, "fake"):
                    request = fake.requests[-1]
                    expected = "The tool said: 4" if after_tool else f"You said: {QUESTION}"
                    assert answer.text == expected, (phase, answer)
                    assert roles(request)[-1] in ("user", "tool"), (phase, request.body)
                later = await chat.say("And now?", session="s0", model="fake/fake-small")
        assert later.text == "You said: And now?", later
        for request in fake.requests:
            assert "Answering with" not in str(request.body), request.body


def roles(request: ModelRequest) -> list[str]:
    """Return the roles of the messages in a request, in order."""
    return [message["role"] for message in request.body.get("messages") or request.body["contents"]]


def _script(trigger: Trigger, phase: Phase) -> Sequence[Reply | Refusal]:
    """Return the replies of the first provider."""
    match phase:
        case "before the first byte":
            return (_refusal(trigger),)
        case "in the text":
            return (Reply((Say("Half"), _break(trigger))),)
        case "in a tool call":
            return (Reply((Say("Half"), Use("calculator", '{"expression": "2 +'), _break(trigger))),)
        case "after a tool result":
            return (Reply((SUM,), "tools"), _refusal(trigger))


def _refusal(trigger: Trigger) -> Reply | Refusal:
    if trigger == "stall":
        return Reply((Stall(),))
    return Refusal(_STATUS[trigger], "refused by the script", {"retry-after": "86400"})


def _break(trigger: Trigger) -> Stall | Bytes:
    """Return a failure in the middle of a stream: an error event, or silence."""
    if trigger == "stall":
        return Stall()
    return Bytes(b'data: {"error":{"message":"refused","code":%d}}\n\n' % _STATUS[trigger])
