"""The fake with discord.py, which knows only its URLs."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import discord
import pytest
import yarl
from discord import app_commands
from msgspec.structs import replace

from channels.discord.fake import FakeDiscord, Figures, relaxed
from tests.channels.discord.raw_bot import misfits

CREATE = "POST /channels/{channel_id}/messages"
OnMessage = Callable[[discord.Message], Awaitable[object]]


@pytest.fixture(autouse=True)
def addresses() -> Iterator[None]:
    """Restore the URLs, which are variables of discord.py's modules."""
    kept = discord.http.Route.BASE, discord.gateway.DiscordWebSocket.DEFAULT_GATEWAY, discord.asset.Asset.BASE
    yield
    discord.http.Route.BASE, discord.gateway.DiscordWebSocket.DEFAULT_GATEWAY, discord.asset.Asset.BASE = kept


@pytest.fixture
async def fake() -> AsyncIterator[FakeDiscord]:
    """Return a platform that asks for no waits."""
    async with FakeDiscord(figures=relaxed()) as fake:
        yield fake
    assert misfits(fake) == []


class Bot(discord.Client):
    """Client that handles each message as a test says."""

    def __init__(self, on_message: OnMessage | None = None) -> None:
        intents = discord.Intents.default()
        intents.message_content = True
        quiet = discord.AllowedMentions.none()
        super().__init__(
            intents=intents,
            allowed_mentions=quiet,
            max_ratelimit_timeout=30,
            guild_ready_timeout=0.1,
            heartbeat_timeout=0.5,
        )
        self.tree = app_commands.CommandTree(self)
        self._answer = on_message

    async def on_message(self, message: discord.Message) -> None:
        if message.author != self.user and self._answer is not None:
            await self._answer(message)


@asynccontextmanager
async def running(fake: FakeDiscord, bot: Bot) -> AsyncGenerator[Bot]:
    """Run a client that has logged in."""
    discord.http.Route.BASE = fake.api_url
    discord.gateway.DiscordWebSocket.DEFAULT_GATEWAY = yarl.URL(fake.gateway_url)
    discord.asset.Asset.BASE = fake.cdn_url
    async with bot, asyncio.TaskGroup() as tasks:
        task = tasks.create_task(bot.start(fake.token))
        async with asyncio.timeout(60):
            await bot.wait_until_ready()
        yield bot
        task.cancel()


async def test_a_bot_answers_edits_and_reacts(fake: FakeDiscord) -> None:
    async def answer(message: discord.Message) -> None:
        async with message.channel.typing():
            said = await message.reply("one", mention_author=False)
        await said.edit(content="two")
        await message.add_reaction("👍")

    async with running(fake, Bot(answer)):
        key = fake.say("general", f"{fake.mention} hello")
        await fake.until(lambda: bool(fake.message("general", key).reactions))
    answer_ = fake.messages("general")[-1]
    assert (answer_.content, answer_.versions, answer_.kind) == ("two", ("one",), 19)
    assert answer_.reference is not None
    assert answer_.reference.message == key
    fake.transcript.check()


async def test_a_bot_answers_in_a_direct_conversation_and_in_a_thread(fake: FakeDiscord) -> None:
    async def answer(message: discord.Message) -> None:
        if isinstance(message.channel, discord.TextChannel):
            thread = await message.create_thread(name="aside")
            await thread.send("in a thread")
        else:
            await message.channel.send("here")

    async with running(fake, Bot(answer)):
        fake.say(fake.dm("bob"), "psst", "bob")
        key = fake.say("general", "hello")
        await fake.until(lambda: fake.answers(fake.dm("bob")) == ["here"] and bool(fake.threads("general")))
        await fake.until(lambda: "in a thread" in fake.answers(key))
        fake.say(key, "more")
        await fake.until(lambda: "here" in fake.answers(key))
    fake.transcript.check()


async def test_the_same_nonce_is_sent_again_after_a_lost_answer(fake: FakeDiscord) -> None:
    async def answer(message: discord.Message) -> None:
        for _ in range(2):
            await message.channel.send("once", nonce="n")

    async with running(fake, Bot(answer)):
        fake.say("general", "hello")
        await fake.until(lambda: len(fake.transcript.of(CREATE)) == 2)
    assert fake.answers("general") == ["once"]


async def test_a_bot_resumes_and_hears_what_it_missed(fake: FakeDiscord) -> None:
    async def answer(message: discord.Message) -> None:
        await message.channel.send(f"{message.content}, heard")

    bot = Bot(answer)
    async with running(fake, bot):
        for number, text in enumerate(["one", "two", "three"]):
            if text == "two":
                fake.sever()
            fake.say("general", text)
            await fake.until(lambda count=number: len(fake.answers("general")) == count + 1)
    assert fake.answers("general") == ["one, heard", "two, heard", "three, heard"]
    assert len(fake.transcript.of("IDENTIFY")) == len(fake.transcript.of("RESUME")) == 1


@pytest.mark.parametrize("how", ["reconnect", "invalid but resumable"])
async def test_a_bot_comes_back_when_it_is_asked_to(fake: FakeDiscord, how: str) -> None:
    bot = Bot()
    async with running(fake, bot):
        if how == "reconnect":
            fake.ask_reconnect()
        else:
            fake.invalidate(resumable=True)
        await fake.until(lambda: bool(fake.transcript.of("RESUME")))
    assert len(fake.transcript.of("IDENTIFY")) == 1


async def test_a_bot_logs_in_again_when_its_session_is_gone(fake: FakeDiscord) -> None:
    async with running(fake, Bot()):
        fake.expire_sessions()
        fake.sever()
        await fake.until(lambda: len(fake.transcript.of("IDENTIFY")) == 2, seconds=20)
    fake.transcript.check()


async def test_a_bot_notices_a_zombie() -> None:
    figures = replace(relaxed(), heartbeat=0.3)
    async with FakeDiscord(figures=figures) as fake, running(fake, Bot()):
        fake.freeze()
        await fake.until(lambda: bool(fake.transcript.of("RESUME")), seconds=20)


async def ended_by(fake: FakeDiscord, act: Callable[[], None]) -> None:
    """Run a client until the test's action ends it."""
    async with running(fake, Bot()), asyncio.timeout(60):
        act()
        await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("code", [4004, 4013, 4014])
async def test_a_fatal_close_code_ends_the_client(fake: FakeDiscord, code: int) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await ended_by(fake, lambda: fake.close(code))
    wanted = discord.PrivilegedIntentsRequired if code == 4014 else discord.ConnectionClosed
    assert caught.group_contains(wanted)


async def test_a_bot_waits_for_retry_after(fake: FakeDiscord) -> None:
    async def answer(message: discord.Message) -> None:
        await message.channel.send("patient")

    fake.slow_down(CREATE, seconds=0.3)
    async with running(fake, Bot(answer)):
        fake.say("general", "hello")
        await fake.until(lambda: fake.answers("general") == ["patient"])
    assert [call.status for call in fake.transcript.of(CREATE)] == [429, 200]
    fake.transcript.check()


async def test_a_bot_reads_the_headers_and_never_runs_into_a_limit() -> None:
    async with FakeDiscord(figures=Figures(identify_interval=0)) as fake:

        async def answer(message: discord.Message) -> None:
            for number in range(6):
                await message.channel.send(str(number))

        async with running(fake, Bot(answer)):
            fake.say("general", "hello")
            await fake.until(lambda: len(fake.answers("general")) == 6, seconds=20)
        assert {call.status for call in fake.transcript.of(CREATE)} == {200}
        fake.transcript.check()


async def test_a_bot_is_refused_what_it_may_not(fake: FakeDiscord) -> None:
    raised: list[int] = []

    async def answer(message: discord.Message) -> None:
        try:
            await message.channel.send("x")
        except discord.Forbidden as error:
            raised.append(error.code)
            fake.permit("general", "SEND_MESSAGES")
            await message.channel.send("allowed again")

    fake.forbid("general", "SEND_MESSAGES")
    async with running(fake, Bot(answer)):
        fake.say("general", "hello")
        await fake.until(lambda: fake.answers("general") == ["allowed again"])
    assert raised == [50013]


async def test_a_bot_reads_files_and_sends_them(fake: FakeDiscord) -> None:
    async def answer(message: discord.Message) -> None:
        data = await message.attachments[0].read()
        await message.channel.send("back", file=discord.File(io.BytesIO(data[::-1]), "back.txt"))

    async with running(fake, Bot(answer)):
        fake.say("general", "reverse", attach={"in.txt": b"abc"})
        await fake.until(lambda: fake.answers("general") == ["back"])
    assert fake.messages("general")[-1].attachments[0].data == b"cba"
    fake.transcript.check()


async def test_a_bot_reads_the_history_after_a_message(fake: FakeDiscord) -> None:
    first = fake.say("general", "zero")
    for number in range(120):
        fake.say("general", str(number))
    found: list[str] = []

    async def answer(message: discord.Message) -> None:
        history = message.channel.history(after=discord.Object(first), limit=None)
        found.extend([said.content async for said in history])
        await message.channel.send("read")

    async with running(fake, Bot(answer)):
        fake.say("general", "go")
        await fake.until(lambda: bool(fake.answers("general")))
    assert found == [*map(str, range(120)), "go"]


async def test_a_command_is_registered_typed_deferred_and_answered(fake: FakeDiscord) -> None:
    bot = Bot()

    @bot.tree.command(description="Ask")
    @app_commands.describe(question="What")
    async def ask(interaction: discord.Interaction, question: str) -> None:
        await interaction.response.defer(thinking=True)
        await interaction.edit_original_response(content=f"you asked: {question}")
        await interaction.followup.send("privately", ephemeral=True)

    async with running(fake, bot):
        synced = await bot.tree.sync()
        assert [command.name for command in synced] == ["ask"]
        key = fake.slash("general", "ask", {"question": "why?"})
        await fake.until(lambda: len(fake.interaction(key).followups) == 1)
    assert fake.answers("general") == ["you asked: why?", "privately"]
    assert [message.ephemeral for message in fake.messages("general")] == [False, True]
    fake.transcript.check()


async def test_a_command_of_a_message_is_picked(fake: FakeDiscord) -> None:
    bot = Bot()

    @bot.tree.context_menu(name="Explain")
    async def explain(interaction: discord.Interaction, message: discord.Message) -> None:
        await interaction.response.send_message(f"{message.content}: it is so", ephemeral=True)

    async with running(fake, bot):
        bot.tree.copy_global_to(guild=discord.Object(fake.guild))
        await bot.tree.sync(guild=discord.Object(fake.guild))
        said = fake.say("general", "42")
        fake.pick("general", "Explain", said, "bob")
        await fake.until(lambda: fake.answers("general") == ["42: it is so"])
    assert fake.messages("general")[-1].reader == fake.user("bob").id


async def test_a_button_is_pressed(fake: FakeDiscord) -> None:
    class Choice(discord.ui.View):
        @discord.ui.button(label="Go", custom_id="go")
        async def go(self, interaction: discord.Interaction, _button: object) -> None:
            await interaction.response.edit_message(content=f"{interaction.user.name} went", view=None)

    async def answer(message: discord.Message) -> None:
        await message.channel.send("ready?", view=Choice(timeout=None))

    async with running(fake, Bot(answer)):
        fake.say("general", "begin")
        await fake.until(lambda: fake.answers("general") == ["ready?"])
        fake.press("general", fake.messages("general")[-1].id, "go", "bob")
        await fake.until(lambda: fake.answers("general") == ["bob went"])
    assert fake.messages("general")[-1].components == ()
    fake.transcript.check()


async def test_an_event_that_is_not_whole_reaches_the_client_as_it_was_given() -> None:
    async with FakeDiscord(figures=relaxed()) as fake:
        broken = {"t": "INTERACTION_CREATE", "d": {"type": 2, "id": "1"}}
        with pytest.raises(ExceptionGroup) as caught:
            await ended_by(fake, lambda: fake.deliver_raw(broken))
        assert caught.group_contains(KeyError)
