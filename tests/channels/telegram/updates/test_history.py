"""Memory of received messages: chains of replies, topics, and threads that the bot was called into."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from typing import Any

from channels.telegram.updates.history import History
from channels.telegram.updates.received import ReceivedMessage
from gateway.channel import Earlier
from tests.channels.telegram.recorded import payload, received

BOT = {"id": 123456789, "is_bot": True, "first_name": "Fake bot", "username": "fake_bot"}
LAB = {"id": -1002000000001, "title": "Lab", "type": "supergroup"}


def message(number: int, text: str, *, reply_to: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    user = {"id": 5000000001, "is_bot": False, "first_name": "Ada"}
    reply = {} if reply_to is None else {"reply_to_message": reply_to}
    head = {"message_id": number, "from": user, "chat": LAB, "date": 1763749000 + number}
    return {**head, "text": text, **reply, **more}


def in_topic(number: int, text: str, **more: Any) -> dict[str, Any]:
    return message(number, text, message_thread_id=5, is_topic_message=True, **more)


def take(history: History, raw: dict[str, Any], *, edited: bool = False) -> ReceivedMessage:
    """Return a message after it was kept."""
    update = {"update_id": raw["message_id"], "edited_message" if edited else "message": raw}
    found = received(update)
    history.keep(found)
    return found


def texts(found: Sequence[Earlier]) -> list[str]:
    return [one.text for one in found]


def mention(number: int, text: str, **more: Any) -> dict[str, Any]:
    entities = [{"type": "mention", "offset": 0, "length": 9}]
    return message(number, f"@fake_bot {text}", entities=entities, **more)


def test_a_chain_of_replies_is_recalled() -> None:
    history = History(topics=True)
    first, other = message(10, "the roof leaks"), message(11, "unrelated")
    second = message(12, "since when?", reply_to=first)
    for raw in (first, other, second):
        take(history, raw)
    asked = take(history, mention(13, "who knows?", reply_to=second)).inbound
    # The quote of the message has the text of the message that it replies to.
    assert texts(history.recall(asked, 50)) == ["the roof leaks"]
    [earlier] = history.recall(asked, 50)
    assert (earlier.key, earlier.sender.name, earlier.at) == ("-1002000000001:10", "Ada", 1763749010000)
    assert history.recall(asked, 0) == []


def test_one_step_of_a_chain_is_known_after_a_restart() -> None:
    history = History(topics=True)
    answer = message(12, "It leaks.") | {"from": BOT}
    asked = take(history, message(13, "and why?", reply_to=answer)).inbound
    [earlier] = history.recall(asked, 50)
    assert (earlier.text, earlier.own, earlier.key) == ("It leaks.", True, "-1002000000001:12")
    other_bot = message(14, "beep") | {"from": BOT | {"id": 42}}
    take(history, message(15, "a bot!", reply_to=other_bot))
    asked = take(history, mention(16, "hm?", reply_to=message(15, "a bot!"))).inbound
    assert [(one.text, one.bot) for one in history.recall(asked, 50)] == [("beep", True)]


def test_a_topic_is_recalled_up_to_the_message() -> None:
    history = History(topics=True)
    take(history, message(9, "elsewhere"))
    for number in range(10, 16):
        take(history, in_topic(number, f"{number}"))
    asked = take(history, in_topic(16, "so?")).inbound
    take(history, in_topic(17, "later"))
    assert texts(history.recall(asked, 3)) == ["13", "14", "15"]
    assert texts(history.recall(asked, 50)) == ["10", "11", "12", "13", "14", "15"]


def test_an_edit_replaces_its_original_and_files_are_named() -> None:
    history = History(topics=True)
    take(history, in_topic(10, "tow"))
    take(history, in_topic(10, "two", edit_date=1763750000), edited=True)
    photo = payload("forwarded_photo")["message"]
    forwarded = {"photo": photo["photo"], "caption": "yes", "forward_origin": photo["forward_origin"]}
    take(history, in_topic(11, "") | forwarded)
    found = history.recall(take(history, in_topic(12, "so?")).inbound, 50)
    assert [(one.text, one.files) for one in found] == [("two", ()), ("yes", ("photo.jpg",))]
    assert found[0].key == "-1002000000001:10"


def test_private_messages_are_kept_only_as_chains_of_replies() -> None:
    history = History(topics=True)
    chat = {"chat": payload("private")["message"]["chat"]}
    take(history, message(10, "one") | chat)
    assert history.recall(received({"update_id": 1, "message": message(11, "two") | chat}).inbound, 50) == []
    answer = message(12, "Because.") | chat | {"from": BOT}
    asked = take(history, message(13, "and why?", reply_to=answer) | chat)
    assert texts(history.recall(asked.inbound, 50)) == ["Because."]


def test_a_topic_that_the_bot_was_called_into_is_a_thread() -> None:
    history = History(topics=True)
    plain = received({"update_id": 1, "message": in_topic(11, "and you?")})
    assert not history.is_called(plain)
    called = take(history, mention(10, "hello", message_thread_id=5, is_topic_message=True)).inbound
    # Users who may not use the bot call it into no thread.
    assert not history.is_called(plain)
    history.called(called)
    assert history.is_called(plain)
    assert not history.is_called(received({"update_id": 1, "message": in_topic(9, "written before")}))
    entities = [{"type": "mention", "offset": 0, "length": 4}]
    assert not history.is_called(
        received({"update_id": 1, "message": in_topic(12, "@ben hi", entities=entities)})
    )
    assert not history.is_called(received({"update_id": 1, "message": message(13, "elsewhere")}))
    whole = History(topics=False)
    take(whole, mention(10, "hello", message_thread_id=5, is_topic_message=True))
    whole.called(called)
    assert not whole.is_called(plain)


def test_a_command_calls_the_bot_into_no_thread() -> None:
    history = History(topics=True)
    entities = [{"type": "bot_command", "offset": 0, "length": 5}]
    history.called(take(history, in_topic(10, "/help", entities=entities)).inbound)
    assert not history.is_called(received({"update_id": 1, "message": in_topic(11, "thanks")}))


def test_a_chain_of_replies_that_the_bot_was_called_into_is_a_thread() -> None:
    history = History(topics=False)
    first = message(10, "the roof leaks")
    take(history, first)
    asked = mention(11, "why?", reply_to=first)
    called = take(history, asked).inbound
    answer = message(12, "It is old.") | {"from": BOT}
    thanks = message(13, "I see", reply_to=answer)
    take(history, thanks)
    follow = received({"update_id": 1, "message": message(14, "what now?", reply_to=thanks)})
    to_asked = received({"update_id": 1, "message": message(15, "good question", reply_to=asked)})
    to_first = received({"update_id": 1, "message": message(16, "mine, too", reply_to=first)})
    assert [history.is_called(one) for one in (follow, to_asked, to_first)] == [True, False, False]
    history.called(called)
    assert [history.is_called(one) for one in (follow, to_asked, to_first)] == [True, True, False]


def test_chains_with_a_loop_end() -> None:
    history = History(topics=True)
    first, second = message(10, "one"), message(11, "two")
    take(history, first | {"reply_to_message": second})
    take(history, second | {"reply_to_message": first})
    asked = received({"update_id": 1, "message": message(12, "three", reply_to=second)})
    assert not history.is_called(asked)
    assert texts(history.recall(asked.inbound, 50)) == ["one"]


def test_the_memory_is_bounded() -> None:
    history = History(topics=True)
    for number in range(10, 10_010):
        last = take(history, in_topic(number, f"{number}"))
    assert len(history.recall(last.inbound, 1000)) < 50
    for number in range(20_000, 20_100):
        last = take(history, in_topic(number, "x" * 4_000))
    found = history.recall(last.inbound, 1000)
    assert 1 < len(found) < 6
    assert {len(one.text) for one in found} == {2_001}


def test_the_rooms_are_bounded_and_an_idle_one_is_small() -> None:
    history = History(topics=True)

    def fill(rooms: range, length: int) -> None:
        for room in rooms:
            for number in range(10, 70):
                chat = LAB | {"id": -1002000000001 - room}
                take(history, in_topic(number, "words " * length) | {"chat": chat})

    fill(range(10), 5)
    for length in (1, 5, 50):
        tracemalloc.start()
        fill(range(100 * length, 100 * length + 50), length)
        used = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert used / 50 < 8_192
    for room in range(2_100):
        take(history, in_topic(10, "one") | {"chat": LAB | {"id": -1002000000001 - room}})
    asked = received({"update_id": 1, "message": in_topic(90, "so?")})
    assert history.recall(asked.inbound, 50) == []
    newest = received(
        {"update_id": 1, "message": in_topic(90, "so?") | {"chat": LAB | {"id": -1002000002100}}}
    )
    assert texts(history.recall(newest.inbound, 50)) == ["one"]
