"""Messages are encoded once, and what is kept of that is bounded."""

from __future__ import annotations

import msgspec

from gateway.messages import Message
from gateway.testing.talk import user
from gateway.wire.fragments import FragmentCache, RecentEncodings


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


def test_a_message_that_was_replaced_under_its_id_is_encoded_anew() -> None:
    encoder = Encoder()
    cache = FragmentCache(encoder)
    partial = user("half")
    whole = msgspec.structs.replace(partial, parts=user("half done").parts)

    assert cache.join([partial]) == b"half"
    assert cache.join([whole]) == b"half done"
    assert len(cache) == 1


def test_no_more_is_kept_than_the_bounds_allow_and_what_is_used_stays() -> None:
    encoder = Encoder()
    cache = FragmentCache(encoder, entries=20)
    favourite = user("favourite")
    for number in range(200):
        cache.join([favourite, user(str(number))])

    assert len(cache) <= 20
    assert encoder.calls == 201


def test_large_fragments_push_others_out() -> None:
    cache = FragmentCache(Encoder(), size=10_000)
    for _ in range(50):
        cache.join([user("x" * 1000)])

    assert len(cache) <= 10


def test_what_hardly_changes_is_encoded_once() -> None:
    seen: list[str] = []

    def encode(text: str) -> bytes:
        seen.append(text)
        return text.encode()

    recent = RecentEncodings(encode, limit=2)
    assert [recent.get(text) for text in ("a", "b", "a", "c", "b")] == [b"a", b"b", b"a", b"c", b"b"]
    assert seen == ["a", "b", "c"]
