"""The parts of a keeper without its process: frames, retained output, questions to the terminal."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugins.coding_agents.keeper.output import Output
from plugins.coding_agents.keeper.server import CommandIds
from plugins.coding_agents.keeper.terminal import CURSOR, Queries, find_cursor
from plugins.coding_agents.keeper.wire import (
    MAX_FRAME,
    FrameError,
    FrameSplitter,
    clamp_size,
    frame,
    pack,
    unpack,
)

FRAMES = st.lists(st.tuples(st.binary(min_size=1, max_size=1), st.binary(max_size=50)))
PIECES = st.lists(st.binary(max_size=300), max_size=30)


def cut(data: bytes, sizes: list[int]) -> Iterator[bytes]:
    """Yield the data in pieces of these sizes, and its rest."""
    for size in sizes:
        yield data[:size]
        data = data[size:]
    yield data


@given(FRAMES, st.lists(st.integers(1, 40)))
def test_frames_are_the_same_however_they_are_cut(
    frames: list[tuple[bytes, bytes]], sizes: list[int]
) -> None:
    splitter = FrameSplitter()
    data = b"".join(frame(kind, payload) for kind, payload in frames)
    assert [found for piece in cut(data, sizes) for found in splitter.feed(piece)] == frames


def test_a_frame_above_the_limit_is_refused_before_it_is_buffered() -> None:
    assert FrameSplitter().feed(frame(b"W", bytes(MAX_FRAME)))[0][0] == b"W"
    with pytest.raises(FrameError):
        FrameSplitter().feed((MAX_FRAME + 1).to_bytes(4) + b"W")


@given(st.lists(st.binary(max_size=20)))
def test_a_launch_is_the_same_on_the_other_side(items: list[bytes]) -> None:
    assert list(unpack(pack(items))) == items


@pytest.mark.parametrize(
    ("asked", "given"), [((0, 0), (1, 1)), ((65535, 65535), (500, 1000)), ((40, 120),) * 2]
)
def test_sizes_are_those_that_a_screen_can_have(asked: tuple[int, int], given: tuple[int, int]) -> None:
    assert clamp_size(*asked) == given


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """Be in a new folder."""
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        yield Path(name)


def read_all(output: Output, offset: int) -> bytes:
    """Return all output from an offset."""
    data = b""
    while piece := output.read(offset + len(data), 37):
        data += piece
    return data


@given(PIECES)
def test_retained_output_is_what_was_written(pieces: list[bytes]) -> None:
    with folder() as here:
        output = Output(ring=64, file_bytes=200)
        written = b"".join(pieces)
        for piece in pieces:
            output.append(piece, 0)
            assert output.oldest <= max(0, output.end - 200), "one full file is always retained"
        for offset in {output.oldest, output.end, (output.oldest + output.end) // 2}:
            assert read_all(output, offset) == written[offset:]
        assert output.tail(30) == written[-30:]
        output.store(0)
        files = [path.read_bytes() for path in here.iterdir()]
        assert all(len(file) <= 8 + 200 for file in files)
        for file in files:
            start = int.from_bytes(file[:8])
            assert written[start:].startswith(file[8:])


@given(PIECES, PIECES)
def test_a_full_disk_costs_what_memory_does_not_retain(before: list[bytes], after: list[bytes]) -> None:
    """A folder in the place of a file refuses to be opened, as a full disk does."""
    with folder() as here:
        (here / "output.0").mkdir()
        output = Output(ring=64, file_bytes=200)
        for piece in before:
            output.append(piece, 0)
        written = b"".join(before)
        assert output.oldest == max(0, len(written) - 64)
        assert read_all(output, output.oldest) == written[output.oldest :]
        (here / "output.0").rmdir()
        for piece in after:
            output.append(piece, 11)
        written += b"".join(after)
        assert read_all(output, output.oldest) == written[output.oldest :]


def test_a_damaged_file_becomes_a_gap() -> None:
    with folder() as here:
        output = Output(ring=64, file_bytes=1000)
        output.append(bytes(500), 0)
        assert output.oldest == 0
        (here / "output.0").write_bytes(b"")
        assert output.read(0, 100) == b""
        assert output.oldest == 500 - 64


QUERIES = {
    b"\x1b[?u": b"\x1b[?0u",
    b"\x1b]10;?\x1b\\": b"\x1b]10;rgb:ffff/ffff/ffff\x1b\\",
    b"\x1b]11;?\x07": b"\x1b]11;rgb:0000/0000/0000\x07",
    b"\x1b[6n": CURSOR,
    b"\x1b[c": b"\x1b[?62;22c",
    b"\x1b[0c": b"\x1b[?62;22c",
}


@given(
    st.lists(st.one_of(st.sampled_from(sorted(QUERIES)), st.sampled_from([b"x", b"\x1b[1m", b"\r\n"]))),
    st.lists(st.integers(1, 12)),
)
def test_questions_are_answered_once_in_their_order(parts: list[bytes], sizes: list[int]) -> None:
    queries = Queries()
    answers = b"".join(queries.answer(piece) for piece in cut(b"".join(parts), sizes))
    assert answers == b"".join(QUERIES.get(part, b"") for part in parts)


@pytest.mark.parametrize(
    ("shown", "cursor"),
    [
        (b"", (1, 1)),
        (b"abc", (1, 4)),
        (b"one\r\ntwo", (2, 4)),
        (b"\x1b[5;7Hab\x1b[2A\x1b[3C", (3, 12)),
        (b"\x1b[99;99H", (10, 20)),
        (b"\x1b[H\x1b[2J\x1b[?25l\x1b[4d\x1b[9G", (4, 9)),
        (b"x" * 20, (1, 20)),
        (b"x" * 21, (2, 2)),
        (b"\n" * 50, (10, 1)),
        (b"a\tb", (1, 10)),
        ("äö".encode(), (1, 3)),
        (b"\x1b]0;a title\x07ab", (1, 3)),
        (b"\x1b]0;a title\x1b\\ab", (1, 3)),
        (b"\x1b(Bab\x1b[2Eabc\x1b[1F", (2, 1)),
    ],
)
def test_the_cursor_is_where_the_output_leaves_it(shown: bytes, cursor: tuple[int, int]) -> None:
    assert find_cursor(shown, 10, 20) == cursor


@given(
    st.binary(max_size=400) | st.text("\x1b[];?0123456789ABCDEFGHdfmP\\\x07x\n", max_size=100).map(str.encode)
)
def test_any_output_leaves_the_cursor_on_the_screen(data: bytes) -> None:
    row, column = find_cursor(data, 10, 20)
    assert 1 <= row <= 10
    assert 1 <= column <= 20


@given(st.lists(st.integers(1, 60)))
def test_ids_are_known_once_they_were_used(numbers: list[int]) -> None:
    ids = CommandIds()
    used: set[int] = set()
    for number in numbers:
        assert (number in ids) == (number in used)
        used.add(number)
        if number not in ids:
            ids.add(number)


def test_ids_that_are_never_in_order_take_bounded_memory() -> None:
    ids = CommandIds()
    for number in range(10, 100_000, 7):
        assert number not in ids
        ids.add(number)
    assert 10 in ids
    assert 99_999 not in ids
