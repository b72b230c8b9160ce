"""Messages are encoded once, and what is kept of that is bounded."""

from __future__ import annotations

import msgspec

from gateway.contract.messages import Message
from gateway.provider_http.fragments import FragmentCache, RecentEncodings
from gateway.testing.contracts.provider_calls import user


def in_session(session_id: str, text: str) -> Message:
    """A message of a session."""
    return msgspec.structs.replace(user(text), session_id=session_id)


class Encoder:
    """Encodes a message as its text, and counts."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, message: Message) -> bytes:
        self.calls += 1
        return message.text.encode()


def test_a_message_is_encoded_once_however_often_it_is_sent() -> None:
    encoder = Encoder()
    cache = FragmentCache(encoder)
    messages = [user("a"), user(""), user("b")]

    assert {cache.join(messages) for _ in range(5)} == {b"a,b"}
    assert encoder.calls == 3


def test_a_message_that_was_replaced_under_its_id_is_encoded_again() -> None:
    encoder = Encoder()
    cache = FragmentCache(encoder)
    partial = user("half")
    whole = msgspec.structs.replace(partial, parts=user("half done").parts)

    assert cache.join([partial]) == b"half"
    assert cache.join([whole]) == b"half done"
    assert len(cache) == 1


def test_what_a_conversation_left_behind_is_forgotten_and_the_rest_stays() -> None:
    encoder = Encoder()
    cache = FragmentCache(encoder)
    favourite = user("favourite")
    said = [user(str(number)) for number in range(1000)]
    for number in range(1000):
        cache.join([favourite, *said[max(0, number - 20) : number + 1]])

    assert len(cache) <= 80
    assert encoder.calls == 1001


def test_a_window_that_moves_encodes_only_new_messages() -> None:
    encoder = Encoder()
    cache = FragmentCache(encoder)
    said = [user(str(number)) for number in range(100)]
    for end in range(20, 101, 2):
        joined = cache.join(said[end - 20 : end])
        assert joined == b",".join(b"%d" % number for number in range(end - 20, end))

    assert encoder.calls == 100
    assert len(cache) == 20


def test_a_nested_run_of_a_session_does_not_evict_its_history() -> None:
    encoder = Encoder()
    cache = FragmentCache(encoder)
    history = [user(str(number)) for number in range(50)]
    for number in range(10):
        cache.join(history)
        assert cache.join([user(f"task {number}")]) == b"task %d" % number

    assert encoder.calls == 60
    assert len(cache) == 53


def test_a_history_with_a_changed_message_encodes_only_that_one() -> None:
    encoder = Encoder()
    cache = FragmentCache(encoder)
    history = [user(str(number)) for number in range(50)]
    cache.join(history)
    history[20] = msgspec.structs.replace(history[20], parts=user("edited").parts)
    del history[30]

    assert b"19,edited,21" in cache.join([user("a new first message"), *history])
    assert encoder.calls == 52


def test_the_conversation_that_was_not_sent_for_longest_goes_first() -> None:
    encoder = Encoder()
    cache = FragmentCache(encoder, size=10_000)
    first, *others = [in_session(str(number), "x" * 1000) for number in range(50)]
    for other in others:
        cache.join([first])
        cache.join([other])

    assert len(cache) <= 10
    assert encoder.calls == 50


def test_what_is_too_large_to_be_kept_is_sent_all_the_same() -> None:
    cache = FragmentCache(Encoder(), size=100)

    assert cache.join([user("x" * 1000)]) == b"x" * 1000
    assert cache.join([]) == b""
    assert len(cache) == 0


def test_what_hardly_changes_is_encoded_once() -> None:
    seen: list[str] = []

    def encode(text: str) -> bytes:
        seen.append(text)
        return text.encode()

    recent = RecentEncodings(encode, limit=2)
    assert [recent.get(text) for text in ("a", "b", "a", "c", "b")] == [b"a", b"b", b"a", b"c", b"b"]
    assert seen == ["a", "b", "c"]
