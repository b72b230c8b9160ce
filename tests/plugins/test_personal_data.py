"""The plugin ``personal_data``: what is masked in tool results and answers, and what is not."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gateway import Plugin, PluginError, ToolResultPart, tool_from
from gateway.testing.chat import chatting
from gateway.testing.fake_models.script import Reply, Say, Think, Use
from plugins.personal_data import PersonalData

IBAN = "DE89 3704 0044 0532 0130 00"


async def look_up(text: str) -> str:
    """Return a customer's record."""
    return f"Record: {text}"


class Records(Plugin):
    name = "records"

    def tools(self):
        return [LOOK_UP]


LOOK_UP = tool_from(look_up)


async def answered(tmp_path: Path, text: str, **settings: object) -> str:
    """Return how an answer of the model reads."""
    async with chatting(tmp_path, PersonalData(), plugins={"personal_data": settings}) as chat:
        chat.model.then(Reply((Say(text),)))
        return (await chat.say("hi")).text


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("Write to Ada.Byron+x@mail.example.org.", "Write to [email]."),
        (f"IBAN {IBAN} PLEASE PAY", "IBAN [iban] PLEASE PAY"),
        (f"IBAN {IBAN.replace(' ', '')}, thanks", "IBAN [iban], thanks"),
        ("GB82 WEST 1234 5698 7654 32", "[iban]"),
        ("Call +47 (22) 12-34-56 now", "Call [phone] now"),
        ("Case DE12 3456 7890 1234 5678 90 is no IBAN", "Case DE12 3456 7890 1234 5678 90 is no IBAN"),
        ("1 + 23456789 @ home, 2026-11-22", "1 + 23456789 @ home, 2026-11-22"),
    ],
)
async def test_personal_data_is_masked_in_answers(tmp_path: Path, text: str, masked: str) -> None:
    assert await answered(tmp_path, text) == masked


async def test_a_tool_result_is_masked_before_the_model_gets_it(tmp_path: Path) -> None:
    async with chatting(tmp_path, Records(), PersonalData()) as chat:
        chat.model.then(
            Reply((Use("look_up", '{"text": "ada@example.org"}'),), "tools"),
            Reply((Think("It is ada@example.org."), Say("Found."))),
        )
        answer = await chat.say("Who is it?")
        sent = [p for m in chat.model.calls[1].messages for p in m.parts if isinstance(p, ToolResultPart)]
    assert [part.output for part in sent] == ["Record: [email]"]
    assert "It is [email]." in str(answer.parts)


async def test_the_operator_chooses_what_to_mask(tmp_path: Path) -> None:
    text = "C-12345 has ada@example.org and +4722123456"
    settings = {"kinds": ["phone"], "patterns": {"customer": r"\bC-\d{5}\b"}}
    assert await answered(tmp_path, text, **settings) == "[customer] has ada@example.org and [phone]"
    (tmp_path / "other").mkdir()
    assert await answered(tmp_path / "other", text, **settings, answers=False) == text


async def test_a_long_text_without_spaces_is_masked_in_linear_time(tmp_path: Path) -> None:
    began = time.perf_counter()
    text = "A1" * 100_000
    assert await answered(tmp_path, text) == text
    assert time.perf_counter() - began < 20


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"kinds": ["name"]}, "must be 'email', 'iban' or 'phone'"),
        ({"patterns": {"x": "("}}, "has '(' for 'x', which is not a regular expression (missing ),"),
        ({"patterns": {"x": "a*"}}, "has 'a*' for 'x', which matches an empty text; make it longer"),
    ],
)
async def test_a_wrong_setting_stops_the_start(
    tmp_path: Path, settings: dict[str, object], complaint: str
) -> None:
    with pytest.raises(PluginError) as caught:
        async with chatting(tmp_path, PersonalData(), plugins={"personal_data": settings}):
            pass
    assert complaint in str(caught.value)
    assert "plugins.personal_data." in str(caught.value)
