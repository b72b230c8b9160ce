"""The OpenAI provider against a server that speaks the real protocol and refuses what OpenAI would."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from gateway.contract.deltas import Complete, MetadataDelta, TextDelta, ToolCallDelta, ToolCallStart
from gateway.contract.errors import ContentFilterError
from gateway.contract.messages import (
    Attachment,
    Display,
    ErrorPart,
    FilePart,
    ImagePart,
    Message,
    Metadata,
    Part,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from gateway.contract.provider import ChatOptions, Provider, ProviderConfig, ToolDefinition
from gateway.testing.contracts.provider_calls import OPTIONS, assistant, connected, deltas_of, user
from gateway.testing.fake_models.script import (
    Bytes,
    Gate,
    ModelRequest,
    Reply,
    Say,
    Think,
    Tokens,
    Use,
    UseTogether,
)
from gateway.testing.fake_models.server import FakeModels
from plugins.providers.openai import create

TOOL = ToolDefinition("clock", "Tells the time.", {"type": "object", "properties": {}})
SECRET = "sk-very-secret-0123456789"


async def asked_with(*messages: Message, options: ChatOptions = OPTIONS, **settings: object) -> ModelRequest:
    async with FakeModels() as fake, connected(create, fake.openai_url, **settings) as provider:
        await deltas_of(provider, *messages, options=options)
        return fake.requests[0]


async def test_002_30_an_answer_streams_through_the_adapter() -> None:
    async with FakeModels() as fake, connected(create, fake.openai_url) as provider:
        fake.then(Reply((Say("Hel"), Say("lo")), tokens=Tokens(7, 2)))

        assert await deltas_of(provider) == [
            TextDelta("answer", 0, "Hello", 5),
            MetadataDelta("answer", 7, 2, 0.0),
            Complete("answer", Metadata("fake-small", "fake", 7, 2, 0), "end_turn"),
        ]


@pytest.mark.parametrize(
    ("model", "ending"),
    [
        (
            "gpt-5.4",
            b'data: {"choices":[],"usage":{"prompt_tokens":100,"completion_tokens":7,'
            b'"prompt_tokens_details":{"cached_tokens":20,"cache_write_tokens":50}}}\n\ndata: [DONE]\n\n',
        ),
        (
            "gpt-5.6",
            b'data: {"type":"response.completed","response":{"usage":{"input_tokens":100,"output_tokens":7,'
            b'"input_tokens_details":{"cached_tokens":20,"cache_write_tokens":50}}}}\n\n',
        ),
    ],
)
async def test_tokens_that_are_written_to_the_cache_are_reported(model: str, ending: bytes) -> None:
    options = msgspec.structs.replace(OPTIONS, model=model)
    async with FakeModels() as fake, connected(create, fake.openai_url, like="openai") as provider:
        fake.then(Reply((Say("Hi"), Bytes(ending))))
        reports = [d for d in await deltas_of(provider, options=options) if isinstance(d, MetadataDelta)]
    last = reports[-1]
    assert (last.input_tokens, last.cached_tokens, last.cache_write_tokens) == (100, 20, 50)


async def test_002_19_cached_tokens_are_reported_once_and_zero_if_there_are_none() -> None:
    async with FakeModels() as fake, connected(create, fake.openai_url) as provider:
        fake.then(Reply((Say("a"),), tokens=Tokens(100, 2, 80)), Reply((Say("b"),)))
        for cached in (80, 0):
            reports = [d for d in await deltas_of(provider) if isinstance(d, MetadataDelta)]
            assert [report.cached_tokens for report in reports] == [cached]


async def test_reasoning_is_its_own_part() -> None:
    async with FakeModels() as fake, connected(create, fake.openai_url) as provider:
        fake.then(Reply((Think("Hm"), Think("m."), Say("Yes."))))

        message = (await provider.chat((user("Hi"),), OPTIONS)).with_state_of()
        assert message.parts == (TextPart("Hmm.", "reasoning"), TextPart("Yes."))


async def test_004_12_a_tool_call_shows_its_name_first_and_its_fragments_make_json() -> None:
    gate = asyncio.Event()
    call = Use("clock", '{"zone": "Europe/Oslo"}', "call_a", pieces=4)
    async with FakeModels() as fake, connected(create, fake.openai_url) as provider:
        fake.then(Reply((Say("Let me see."), call, Gate(gate)), "tools"))
        stream = provider.stream((user("Hi"),), OPTIONS)
        text, start, arguments = [await anext(stream) for _ in range(3)]
        gate.set()
        rest = [delta async for delta in stream]

        assert text == TextDelta("answer", 0, "Let me see.", 11)
        assert start == ToolCallStart("answer", 1, "call_a", "clock")
        assert arguments == ToolCallDelta("answer", 1, "call_a", '{"zone": "Europe/Oslo"}')
        assert isinstance(rest[-1], Complete)
        assert rest[-1].stop_reason == "tool_use"


async def test_parallel_tool_calls_with_interleaved_fragments_are_kept_apart() -> None:
    clock, total = Use("clock", '{"zone": "UTC"}', "a", 3), Use("sum", '{"of": [1, 2]}', "b", 5)
    async with FakeModels() as fake, connected(create, fake.openai_url) as provider:
        fake.then(Reply((UseTogether((clock, total, Use("now", "{}", "c"))),), "tools"))

        message = await provider.chat((user("Hi"),), OPTIONS)
        assert message.parts == (
            ToolCallPart("a", "clock", {"zone": "UTC"}),
            ToolCallPart("b", "sum", {"of": [1, 2]}),
            ToolCallPart("c", "now", {}),
        )


def chunk(delta: str, finish: str = "null") -> bytes:
    return b'data: {"choices":[{"delta":%s,"finish_reason":%s}]}\n\n' % (delta.encode(), finish.encode())


async def parts_of(*chunks: bytes) -> tuple[Part, ...]:
    async with FakeModels() as fake, connected(create, fake.openai_url, max_retries=0) as provider:
        fake.then(Reply(tuple(map(Bytes, chunks))))
        return (await provider.chat((user("Hi"),), OPTIONS)).parts


async def test_calls_without_an_id_get_one_and_calls_without_a_name_are_dropped() -> None:
    parts = await parts_of(
        chunk('{"tool_calls":[{"index":0,"function":{"name":"clo"}}]}'),
        chunk('{"tool_calls":[{"index":0,"function":{"name":"ck","arguments":"{}"}}]}'),
        chunk('{"tool_calls":[{"index":1,"function":{"arguments":"{}"}}]}'),
    )

    assert [(type(part), getattr(part, "tool_name", "")) for part in parts] == [(ToolCallPart, "clock")]
    assert isinstance(parts[0], ToolCallPart)
    assert parts[0].tool_call_id.startswith("call_")


async def test_servers_that_number_every_call_zero_are_understood() -> None:
    parts = await parts_of(
        chunk('{"tool_calls":[{"index":0,"id":"a","function":{"name":"clock","arguments":"{}"}}]}'),
        chunk('{"tool_calls":[{"index":0,"id":"b","function":{"name":"clock","arguments":"{}"}}]}'),
        chunk('{"tool_calls":[{"id":"b","function":{"name":"clock","arguments":"{}"}}]}'),
    )

    ids = [part.tool_call_id for part in parts if isinstance(part, ToolCallPart)]
    assert ids[:2] == ["a", "b"]


async def test_a_stop_reason_said_twice_ends_the_answer_once() -> None:
    end = chunk("{}", '"stop"')
    async with FakeModels() as fake, connected(create, fake.openai_url) as provider:
        fake.then(Reply((Bytes(chunk('{"content":"Hi"}')), Bytes(end, times=2))))
        deltas = await deltas_of(provider)

    assert [type(delta) for delta in deltas].count(Complete) == 1


@pytest.mark.parametrize(
    ("stop", "reason"), [("end", "end_turn"), ("length", "max_tokens"), ("tools", "end_turn")]
)
async def test_stop_reasons_are_translated(stop: str, reason: str) -> None:
    async with FakeModels() as fake, connected(create, fake.openai_url) as provider:
        fake.then(Reply((Say("Hi"),), stop))  # type: ignore[arg-type]
        if stop == "tools":
            fake.then(Reply((Use("clock"),), "end"))
            await deltas_of(provider)
            reason = "tool_use"
        last = (await deltas_of(provider))[-1]

    assert isinstance(last, Complete)
    assert last.stop_reason == reason


async def test_a_filtered_answer_is_an_error() -> None:
    async with FakeModels() as fake, connected(create, fake.openai_url) as provider:
        fake.then(Reply((Say("I"),), "filter"))
        with pytest.raises(ContentFilterError):
            await deltas_of(provider)


async def test_004_30_the_contract_is_whole() -> None:
    async with FakeModels() as fake, connected(create, fake.openai_url, like="openai") as provider:
        assert isinstance(provider, Provider)
        assert (provider.id, provider.name, provider.auth_method) == ("fake", "OpenAI", "api_key")
        assert provider.api_endpoint == fake.openai_url
        assert provider.capabilities.tools
        assert [model.id for model in await provider.list_models()] == ["fake-small", "fake-large"]
        assert (await provider.chat((user("Hi"),), OPTIONS)).text == "You said: Hi"


async def test_004_31_every_provider_setting_reaches_the_wire() -> None:
    asked = await asked_with(
        user("Hi"),
        api_key=SECRET,
        organization_id="org-1",
        project_id="proj-2",
        custom_headers={"X-Team": "blue", "Accept": "text/plain"},
    )

    assert asked.headers["authorization"] == f"Bearer {SECRET}"
    assert asked.headers["openai-organization"] == "org-1"
    assert asked.headers["openai-project"] == "proj-2"
    assert asked.headers["x-team"] == "blue"
    assert asked.headers["accept"] == "text/plain"
    defaults = ProviderConfig(id="fake")
    assert (defaults.timeout, defaults.max_retries) == (120_000, 3)


async def test_a_server_without_keys_gets_a_placeholder() -> None:
    asked = await asked_with(user("Hi"))
    assert asked.headers["authorization"] == "Bearer none"


async def test_004_32_every_option_reaches_the_wire() -> None:
    options = ChatOptions(
        model="fake-large",
        temperature=0.25,
        top_p=0.9,
        seed=7,
        max_tokens=99,
        tools=(TOOL,),
        system_prompt="Be brief.",
        stop_sequences=("END",),
        response_format="json",
    )
    body = dict((await asked_with(user("Hi"), options=options)).body)

    assert body == {
        "model": "fake-large",
        "temperature": 0.25,
        "top_p": 0.9,
        "seed": 7,
        "max_tokens": 99,
        "tools": [{"type": "function", "function": msgspec.to_builtins(TOOL)}],
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        "stop": ["END"],
        "response_format": {"type": "json_object"},
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_002_38_images_reach_the_model() -> None:
    picture = ImagePart("aGVsbG8=", "image/png")
    shown = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}}
    asked = await asked_with(user("Look", picture), user(picture), like="openai")

    assert asked.body["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "Look"}, shown]},
        {"role": "user", "content": [{"type": "text", "text": "(image attached)"}, shown]},
    ]


async def test_a_picture_of_many_megabytes_reaches_the_model() -> None:
    asked = await asked_with(user(ImagePart("A" * 3_000_000, "image/png")))

    assert len(asked.body["messages"][0]["content"][1]["image_url"]["url"]) > 3_000_000


async def test_files_are_sent_with_their_path_and_lines() -> None:
    file = FilePart("src/a.py", "x = 1", "python", (3, 9))
    asked = await asked_with(user("See", file))

    assert asked.user_text == "See\n\nFile src/a.py, lines 3 to 9:\n```python\nx = 1\n```"


async def test_an_assistant_message_is_sent_in_the_roles_of_the_wire() -> None:
    made = (Attachment("image/png", "aGk="), Attachment("text/csv", "", "t.csv"))
    spoken = assistant(
        TextPart("thinking", "reasoning"),
        TextPart("Let me see."),
        ToolCallPart("a", "clock", {"zone": "UTC"}),
        ToolCallPart("b", "chart", {}, invalid_arguments='{"cut'),
        ToolResultPart("a", "noon"),
        ToolResultPart("b", "here", attachments=made),
        TextPart("It is noon."),
        ErrorPart("StreamAbortedError", "broke"),
    )
    asked = await asked_with(user("Time?"), spoken, user("Thanks"))

    assert [message["role"] for message in asked.body["messages"]] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "user",
        "assistant",
        "user",
    ]
    said, noon, chart = asked.body["messages"][1:4]
    assert said["content"] == "Let me see."
    assert [call["function"]["arguments"] for call in said["tool_calls"]] == ['{"zone":"UTC"}', "{}"]
    assert (noon["content"], chart["content"]) == ("noon", "here\n[attached: t.csv (text/csv)]")
    assert asked.body["messages"][5] == {"role": "assistant", "content": "It is noon."}


async def test_calls_that_were_aborted_never_make_a_transcript_that_is_refused() -> None:
    broken = assistant(
        ToolCallPart("a", "clock", {}),
        ToolCallPart("b", "clock", {}),
        ToolResultPart("a", "noon"),
        ToolResultPart("stray", "?"),
        ToolCallPart("a", "clock", {}),
    )
    asked = await asked_with(user("Time?"), broken, user("Well?"))

    told = [message["content"] for message in asked.body["messages"] if message["role"] == "tool"]
    assert [text.startswith("Aborted") for text in told] == [False, True, True]


async def test_messages_that_are_not_for_the_model_and_empty_ones_are_not_sent() -> None:
    hidden = user("hidden", display=Display(hidden=True))
    said = (user("one"), user(" "), assistant(), user("shown only", for_model=False), hidden)
    asked = await asked_with(*said, like="openai")

    assert [message["content"] for message in asked.body["messages"]] == ["one", "hidden"]


async def test_user_and_assistant_take_turns_where_a_template_wants_it() -> None:
    """What one side says in a row is one message, with pictures and calls; the user begins."""
    picture = ImagePart("aGVsbG8=", "image/png")
    shown = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}}
    call, result = ToolCallPart("a", "clock", {}), ToolResultPart("a", "noon")
    asked = await asked_with(
        assistant(TextPart("Hello.")),
        user("one"),
        user("two"),
        assistant(TextPart("Let me")),
        assistant(TextPart("see."), call, result, TextPart("Noon.")),
        user("Look", picture),
        user("so?"),
    )

    began, hello, question, steps, *_, noon, last = asked.body["messages"]
    assert began == {"role": "user", "content": "(the conversation continues)"}
    assert hello == {"role": "assistant", "content": "Hello."}
    assert question == {"role": "user", "content": "one\n\ntwo"}
    assert steps["content"] == "Let me\n\nsee."
    assert [each["function"]["name"] for each in steps["tool_calls"]] == ["clock"]
    assert noon == {"role": "assistant", "content": "Noon."}
    assert last["content"] == [{"type": "text", "text": "Look"}, shown, {"type": "text", "text": "so?"}]


async def test_system_messages_stay_where_they_are() -> None:
    note = Message(session_id="s", role="system", parts=(TextPart("Note"),))
    asked = await asked_with(user("one"), note, user("two"))

    assert [message["role"] for message in asked.body["messages"]] == ["user", "system", "user"]
