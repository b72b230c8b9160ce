from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugins.coding_agents.screen import MOST_COLUMNS, MOST_ROWS, Row, Run, Screen

PIECES = st.one_of(
    st.binary(max_size=30),
    st.text(max_size=20).map(str.encode),
    st.sampled_from(
        [
            b"\x1b[",
            b"\x1b]",
            b"\x1bP",
            b"\x1b]52;c;",
            b"\x1b\\",
            b"\x07",
            b"\x1b[?1049h",
            b"\x1b[?1049l",
            b"\r\n",
        ]
    ),
    st.builds(
        lambda marker, numbers, between, final: f"\x1b[{marker}{numbers}{between}{final}".encode(),
        st.sampled_from(["", "?", ">", "<", "="]),
        st.text("0123456789;:", max_size=12),
        st.sampled_from(["", " ", "!", "$"]),
        st.sampled_from([chr(code) for code in range(0x40, 0x7F)]),
    ),
    st.builds(
        lambda final: f"\x1b{final}".encode(), st.sampled_from([chr(code) for code in range(0x20, 0x7F)])
    ),
)


def shown(data: bytes, rows: int = 4, columns: int = 10) -> tuple[str, ...]:
    screen = Screen(rows, columns)
    screen.feed(data)
    assert not screen.pending
    return screen.lines()


def finish(screen: Screen) -> Screen:
    while screen.pending:
        screen.feed(b"")
    return screen


@settings(max_examples=150, deadline=None)
@given(st.lists(PIECES, max_size=40), st.integers(-1, 70_000), st.integers(-1, 70_000))
def test_any_bytes_give_a_screen_of_the_same_size(pieces: list[bytes], rows: int, columns: int) -> None:
    screen = Screen(5, 12)
    for number, piece in enumerate(pieces):
        screen.feed(piece)
        if number == len(pieces) // 2:
            screen.resize(min(rows, 30), min(columns, 40))
    lines = screen.lines()
    assert len(lines) == screen.rows
    row, column = screen.cursor
    assert 0 <= row < screen.rows
    assert 0 <= column < screen.columns
    for changed in screen.changed_rows(0):
        assert lines[changed.index] == "".join(run.text for run in changed.runs).rstrip()
    assert not any(character < " " for line in lines for character in line)


@settings(max_examples=100, deadline=None)
@given(st.lists(PIECES, max_size=20), st.integers(1, 9))
def test_the_borders_of_reads_change_nothing(pieces: list[bytes], size: int) -> None:
    data = b"".join(pieces)
    whole, parts = Screen(5, 12), Screen(5, 12)
    whole.feed(data)
    for start in range(0, len(data), size):
        parts.feed(data[start : start + size])
    assert parts.lines() == whole.lines()
    assert parts.cursor == whole.cursor
    assert parts.changed_rows(0) == whole.changed_rows(0)


LINES = st.lists(
    st.one_of(
        st.text(max_size=30).map(str.encode),
        st.sampled_from(
            [b"\r\n"] * 8 + [b"\n", b"\t", b"\b", b"\x1b[31m", b"\x1b[44;1m", b"\x1b[0m", b"\x1b[2;4r"]
        ),
    ),
    min_size=20,
    max_size=80,
)


@settings(max_examples=100, deadline=None)
@given(LINES)
def test_lines_that_scroll_off_within_one_call_leave_the_same_screen(pieces: list[bytes]) -> None:
    whole, parts = Screen(5, 12), Screen(5, 12)
    whole.feed(b"".join(pieces))
    for piece in pieces:
        parts.feed(piece)
    assert whole.changed_rows(0) == parts.changed_rows(0)
    assert whole.cursor == parts.cursor


def test_a_long_output_of_lines_is_rendered_in_one_call() -> None:
    screen = Screen(40, 120)
    screen.feed(b"".join(b"\x1b[32mline %d\x1b[0m\r\n" % number for number in range(20_000)))
    assert not screen.pending
    assert screen.lines()[-2] == "line 19999"
    screen = Screen(3, 20)
    screen.feed(b"\x1b[0m\x1b[31m\x1b[1mfirst" + b"\r\nnext" * 20)
    assert screen.changed_rows(0)[-1] == Row(2, (Run("next", "f1 o"),))


@pytest.mark.parametrize(
    ("data", "first"),
    [
        (b"a\x1b[?4mb", "ab"),
        (b"a\x1b[>4;2mb\x1b[?25;7mc", "abc"),
        (b"a\x1b]0;a title\x07b", "ab"),
        (b"a\x1b]8;;https://evil.example\x1b\\link\x1b]8;;\x1b\\b", "alinkb"),
        (b"a\x1b]52;c;c2VjcmV0\x07b", "ab"),
        (b"a\x1bP+q544e\x1b\\b", "ab"),
        (b"a\x1b[38:2::1:2:3mb\x1b[4:3mc", "abc"),
        (b"a\x1b[58;2;1;2;3mb\x1b[38;5mc", "abc"),
        (b"a\xff\xfeb", "a\ufffd\ufffdb"),
        (b"a\xc3", "a"),
        (b"a\x1b[" + b"9" * 200 + b"C", "a"),
        (b"a\x1b[" + b"9" * 5_000 + b"mb", "ab"),
        (b"a\x1b[3\n1mb", "a"),
        (b"a\x9b31mb", "a\ufffd31mb"),
        ("a\u202eb\u2066c\u200bd\u2028e".encode(), "abcde"),
        (b"\x1b(0lqk\x1b(B q", "┌─┐ q"),
        (b"ab\x1b[3b", "abbbb"),
        (b"ab\x1b[9@c\x1b[3J", "abc"),
    ],
)
def test_only_the_text_of_hostile_output_is_shown(data: bytes, first: str) -> None:
    assert shown(data)[0] == first


def test_text_is_drawn_where_the_cursor_is() -> None:
    assert shown(b"one\r\ntwo\x1b[1;6Hhere\x1b[3;1Hx\x1b[Ky") == ("one  here", "two", "xy", "")
    assert shown(b"1\r\n2\r\n3\r\n4\r\n5") == ("2", "3", "4", "5")
    assert shown(b"0123456789ab") == ("0123456789", "ab", "", "")
    assert shown(b"1\r\n2\r\n3\r\n4\x1b[2;3r\x1b[2;1H\x1b[1M") == ("1", "3", "", "4")
    assert shown(b"1\r\n2\r\n3\r\n4\x1b[2S") == ("3", "4", "", "")
    assert shown(b"1\r\n2\x1b[1T") == ("", "1", "2", "")
    assert shown(b"1\r\n2\x1b[2Jx") == ("", " x", "", "")
    assert shown(b"1\x1b7\x1b[3;3Hx\x1b8y\x1b8z") == ("1z", "", "  x", "")


def test_wide_characters_take_two_columns_and_combining_ones_none() -> None:
    assert shown("日本語x".encode()) == ("日本語x", "", "", "")
    assert shown("a日本語日本語".encode()) == ("a日本語日", "本語", "", "")
    assert shown("日本\x1b[1;2Hx".encode())[0] == " x本"
    assert shown("日本\x1b[1;3Hx".encode())[0] == "日x"
    assert shown("e\u0301a\u0300".encode())[0] == "éà"
    screen = Screen(2, 10)
    screen.feed(b"x" + "\u0301".encode() * 10_000)
    assert len(screen.lines()[0]) == 8
    screen.feed("\r🙂‍🙂y".encode())
    assert screen.cursor == (0, 5)


def test_a_program_on_the_alternate_screen_leaves_the_main_one_as_it_was() -> None:
    screen = Screen(4, 10)
    screen.feed(b"$ vi\r\n\x1b[?1049h\x1b[2;2Hfile\x1b[?25l\x1b[?2004h\x1b[?1h")
    assert screen.lines() == ("", " file", "", "")
    assert (screen.cursor_visible, screen.bracketed_paste, screen.application_keys) == (False, True, True)
    screen.feed(b"\x1b[?1049l\x1b[?25h\x1b[?2004l\x1b[?1ldone")
    assert screen.lines() == ("$ vi", "done", "", "")
    assert (screen.cursor_visible, screen.bracketed_paste, screen.application_keys) == (True, False, False)


def test_styles_are_small_class_names() -> None:
    screen = Screen(3, 40)
    screen.feed(b"\x1b[1;31mred\x1b[0m plain \x1b[2;7;94;48;5;200mx\x1b[22;27;39;49my\x1b[0m")
    screen.feed(b"\r\n\x1b[38;2;255;0;0ma\x1b[38;2;9;9;9mb\x1b[m\x1b[4mc\x1b[24md  ")
    assert screen.changed_rows(0) == [
        Row(0, (Run("red", "f1 o"), Run(" plain "), Run("x", "f12 b200 d r"), Run("y"))),
        Row(1, (Run("a", "f196"), Run("b", "f232"), Run("c", "u"), Run("d"))),
        Row(2, ()),
    ]


def test_an_erased_cell_keeps_the_background_alone() -> None:
    screen = Screen(1, 4)
    screen.feed(b"\x1b[4;41mab\x1b[K")
    assert screen.changed_rows(0) == [Row(0, (Run("ab", "b1 u"), Run("  ", "b1")))]


def test_only_changed_rows_are_reported() -> None:
    screen = Screen(4, 10)
    screen.feed(b"a\r\nb\r\nc")
    version = screen.version
    assert screen.changed_rows(version) == []
    screen.feed(b"\x1b[2;1HB")
    assert screen.version > version
    assert screen.changed_rows(version) == [Row(1, (Run("B"),))]
    version = screen.version
    screen.feed(b"\x1b[m\x07")
    assert screen.version == version
    screen.feed(b"\x1b[1;1H")
    assert screen.version > version
    assert screen.changed_rows(version) == []


def test_sizes_are_kept_within_limits_and_the_line_of_the_cursor_stays() -> None:
    screen = Screen(4, 10)
    screen.feed(b"1\r\n2\r\n3\r\n4")
    screen.resize(2, 10)
    assert screen.lines() == ("3", "4")
    screen.resize(0, 0)
    assert (screen.rows, screen.columns) == (1, 2)
    screen.resize(65_535, 65_535)
    assert (screen.rows, screen.columns) == (MOST_ROWS, MOST_COLUMNS)
    screen = Screen(4, 10)
    screen.feed(b"prompt")
    screen.resize(2, 3)
    screen.resize(3, 10)
    assert screen.lines() == ("pro", "", "")


def test_one_call_does_a_bounded_amount_of_work_and_the_rest_follows() -> None:
    screen = Screen(40, 120)
    screen.feed(b"x" * 500_000 + b"\r\nend")
    assert 0 < screen.pending < 500_000
    assert finish(screen).lines()[-1] == "end"


@pytest.mark.parametrize("piece", [b"\x1b[", b"\x1b[2J", b"\x1b[99L", b"\n", b"\x1b[?1049h\x1b[?1049l"])
def test_a_million_costly_sequences_end_in_a_bounded_number_of_calls(piece: bytes) -> None:
    screen = Screen(40, 120)
    screen.feed(piece * 1_000_000 + b"\x1b[0m")
    screen.feed(b"")
    assert screen.pending <= 512 * 1024
    screen = Screen(40, 120)
    screen.feed(piece * 1_000 + b"\x1b[H\x1b[2Jend")
    assert finish(screen).lines()[0] == "end"


def test_a_flood_is_skipped_but_not_the_state_of_the_screen() -> None:
    screen = Screen(4, 20)
    screen.feed(b"main\x1b[?1049h")
    screen.feed(b"\x1b[?25l" + b"flood " * 400_000 + b"\x1b[?1049l" + b"y" * 600_000 + b"\r\nlast")
    assert finish(screen).lines()[-1] == "last"
    assert not screen.cursor_visible
    screen = Screen(4, 20)
    for _ in range(100):
        screen.feed(b"z" * 1_000_000)
    assert screen.pending <= 512 * 1024


def test_a_string_without_end_hides_a_bounded_amount() -> None:
    screen = Screen(4, 20)
    screen.feed(b"\x1b]0;" + b"t" * 100_000)
    assert screen.lines()[0] == ""
    screen.feed(b"t" * 200_000 + b"\r\n")
    screen.feed(b"shown\x1b]2;title")
    assert screen.lines()[0] == "shown"
    screen.feed(b"\x1b[3;1Hnext")
    assert screen.lines()[2] == "next"
