"""Frames with HTML, in addition to the events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from channels.websocket.render import HtmlView
from gateway import Complete, Message, Metadata, TextPart
from gateway.channel import Event, TurnStart
from gateway.channel import MessageFrame as Whole
from gateway.provider_http import DeltaWriter
from gateway.session.frames import Frame

TEXT = "# Title\n\nSome *text*\nover lines.\n\n```python\nprint('<b>')\n```\n\n- one\n- two\n\nend"


def shown(view: HtmlView, frames: Sequence[Frame], first: int = 1) -> list[dict[str, Any]]:
    return [
        msgspec.json.decode(payload)
        for seq, frame in enumerate(frames, first)
        for payload in view.frames(Event("s", seq, frame))
        if payload is not None
    ]


def answer(text: str, step: int, message_id: str = "m") -> list[Frame]:
    write = DeltaWriter(message_id)
    texts = [write.text(text[at : at + step]) for at in range(0, len(text), step)]
    return [TurnStart(message_id, "u"), *texts, Complete(message_id, Metadata(), "end_turn")]


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_finished_blocks_follow_the_text_that_finished_them(step: int) -> None:
    frames = shown(HtmlView(), answer(TEXT, step))
    blocks = [frame for frame in frames if frame["type"] == "block"]
    assert [block["block_index"] for block in blocks] == [0, 1, 2, 3, 4]
    assert [block["upto"] for block in blocks] == sorted({block["upto"] for block in blocks})
    assert blocks[-1]["upto"] == len(TEXT)
    assert blocks[0]["html"] == "<h1>Title</h1>\n"
    assert "&lt;b&gt;" in blocks[2]["html"]
    assert all(block["session"] == "s" and block["message_id"] == "m" for block in blocks)


def test_a_block_never_comes_before_its_text_or_after_the_end() -> None:
    known = 0
    frames = shown(HtmlView(), answer(TEXT, 3))
    for frame in frames:
        known = frame.get("accumulated_length", known)
        assert frame["type"] != "block" or frame["upto"] <= known
    assert frames[-1]["type"] == "complete"


def test_the_events_themselves_are_the_same_bytes_for_everyone() -> None:
    view = HtmlView()
    for seq, frame in enumerate(answer(TEXT, 5)):
        event = Event("s", seq, frame)
        assert event.json in list(view.frames(event))


def test_an_answer_that_begins_again_is_rendered_from_its_start() -> None:
    view = HtmlView()
    shown(view, answer("lost *tex", 4)[:-1])
    frames = shown(view, answer("# Again\n\nend", 4))
    assert [frame["html"] for frame in frames if frame["type"] == "block"] == [
        "<h1>Again</h1>\n",
        "<p>end</p>\n",
    ]


def test_answers_of_two_sessions_are_rendered_apart() -> None:
    view, one, two = HtmlView(), answer("*one*\n\n.", 2, "m1"), answer("*two*\n\n.", 2, "m2")
    frames = shown(view, [frame for pair in zip(one, two, strict=True) for frame in pair])
    for message_id, word in (("m1", "one"), ("m2", "two")):
        blocks = [f for f in frames if f["type"] == "block" and f["message_id"] == message_id]
        assert [block["html"] for block in blocks] == [f"<p><em>{word}</em></p>\n", "<p>.</p>\n"]


def test_the_parts_of_an_answer_have_their_own_blocks() -> None:
    write = DeltaWriter("m")
    thought = write.text("*hm*", "reasoning")
    call = write.tool_call("c", "clock")
    said = write.text("# It is noon\n\nend")
    frames = shown(
        HtmlView(), [TurnStart("m", "u"), thought, call, said, Complete("m", Metadata(), "end_turn")]
    )
    blocks = [(f["part_index"], f["block_index"], f["html"]) for f in frames if f["type"] == "block"]
    assert blocks == [
        (thought.part_index, 0, "<p><em>hm</em></p>\n"),
        (said.part_index, 0, "<h1>It is noon</h1>\n"),
        (said.part_index, 1, "<p>end</p>\n"),
    ]


def test_a_whole_message_brings_its_html() -> None:
    message = Message(id="m", session_id="s", role="assistant", parts=(TextPart("*hi* <script>"),))
    (frame,) = shown(HtmlView(), [Whole(message)])
    assert frame["html"] == [[0, "<p><em>hi</em> &lt;script&gt;</p>\n"]]
    assert frame["message"]["parts"] == [{"type": "text", "content": "*hi* <script>"}]


def test_what_a_user_typed_is_shown_as_typed() -> None:
    message = Message(id="m", session_id="s", role="user", parts=(TextPart("*hi*"),))
    (frame,) = shown(HtmlView(), [Whole(message)])
    assert "html" not in frame


def test_nothing_is_kept_of_an_answer_that_ended() -> None:
    view, frames = HtmlView(), answer(TEXT, 40)
    first = shown(view, frames)
    assert shown(view, frames[1:], first=2) == first[1:], "rendered anew although no turn_start came"


@pytest.mark.parametrize("whole", [True, False])
def test_a_long_answer_is_rendered_with_pauses(whole: bool) -> None:
    text = "|a|b|\n|-|-|\n" + "|x|y|\n" * 10_000
    write = DeltaWriter("m")
    message = Message(id="m", session_id="s", role="assistant", parts=(TextPart(text),))
    frame = Whole(message) if whole else write.text(text)
    steps = list(HtmlView().frames(Event("s", 1, frame)))
    assert steps.count(None) >= 15
    assert steps[-1 if whole else 0] is not None
