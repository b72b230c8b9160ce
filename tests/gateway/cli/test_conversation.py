"""What a client makes of frames: messages of pieces that are final or still open."""

from __future__ import annotations

from gateway import Complete, Message, Metadata, TextPart
from gateway.channel import MessageFrame, TurnStart
from gateway.cli.chat.conversation import Conversation, Prose, Question, Said, ToolRun
from gateway.cli.chat.link import Ack, Disconnected, Refusal
from gateway.provider_http import DeltaWriter, ToolResultEnd
from gateway.session.frames import Replayed


def conversation() -> tuple[Conversation, DeltaWriter]:
    """A conversation in which the answer ``m`` to ``u`` has begun."""
    talk = Conversation("s")
    talk.take(MessageFrame(Message(id="u", session_id="s", role="user", parts=(TextPart("*hi*"),))))
    talk.take(TurnStart("m", "u"))
    return talk, DeltaWriter("m")


def test_a_block_is_final_when_the_first_line_of_the_next_one_is_whole() -> None:
    talk, write = conversation()
    entry = talk.take(write.text("# One\n\ntw"))
    assert entry is not None
    assert entry.pieces() == ([], [Prose("# One\n\ntw")])
    talk.take(write.text("o\n\nthree"))
    assert entry.pieces() == ([Prose("# One")], [Prose("two\n\nthree")])
    talk.take(Complete("m", Metadata(), "end_turn"))
    assert entry.pieces() == ([Prose("# One"), Prose("two"), Prose("three")], [])


def test_what_a_user_wrote_is_one_piece_as_it_was_typed() -> None:
    talk, _ = conversation()
    assert talk.entries["u"].pieces() == ([Said("*hi*")], [])


def test_nothing_is_final_after_a_tool_that_runs() -> None:
    talk, write = conversation()
    talk.take(write.text("Let me see."))
    call = write.tool_call("c", "clock")
    talk.take(call)
    start = write.result("c")
    talk.take(start)
    entry = talk.take(write.text("Noon."))
    assert entry is not None
    final, open_ = entry.pieces()
    assert final == [Prose("Let me see.")]
    assert [type(piece) for piece in open_] == [ToolRun, Prose]
    talk.take(ToolResultEnd("m", start.part_index, "c", False, 5))
    final, open_ = entry.pieces()
    assert [type(piece) for piece in final] == [Prose, ToolRun]
    assert open_ == [Prose("Noon.")]


def test_an_answer_that_begins_again_forgets_what_it_was() -> None:
    talk, write = conversation()
    talk.take(write.text("lost"))
    entry = talk.take(TurnStart("m", "u", 2))
    assert entry is not None
    talk.take(DeltaWriter("m").text("kept"))
    assert entry.pieces() == ([], [Prose("kept")])
    assert len(talk.entries) == 2


def test_a_question_is_settled_by_its_answer_its_refusal_or_a_replay_without_one() -> None:
    talk, write = conversation()
    asked, refused, mute = Question("1", "hi"), Question("2", "ho"), Question("3", "hm")
    ack = Ack("1", "u", "m", "s", 1)
    for question in (asked, refused):
        question.take(ack)
    assert asked.ack is ack
    assert refused.ack is None
    done = Complete("m", Metadata(), "end_turn")
    talk.take(write.text("Hello."))
    assert not talk.settled(asked, write.text("."))
    talk.take(done)
    assert talk.settled(asked, done)
    answer = talk.answer(asked)
    assert answer is not None
    assert answer.text == "Hello."
    refused.take(Refusal("InvalidRequest", "no", client_msg_id="2", retryable=False))
    assert talk.settled(refused, done)
    mute.take(Ack("3", "u3", "m3", "s", 2))
    assert not talk.settled(mute, Replayed())
    mute.take(MessageFrame(Message(id="u3", session_id="s", role="user")))
    assert talk.settled(mute, Replayed())
    mute.take(Disconnected("gone"))
    assert not talk.settled(mute, Replayed())
