"""Names of keys."""

from __future__ import annotations

import pytest

from plugins.coding_agents.adapters.keys import KEYS, key_bytes


def test_more_than_130_names_are_known() -> None:
    letters = [f"ctrl+{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
    functions = [f"f{number}" for number in range(1, 13)]
    plain = ["enter", "tab", "escape", "space", "backspace", "delete", "insert", "home", "end", "pageup"]
    assert len(KEYS) > 130
    assert not {*letters, *functions, *plain, "pagedown", "up", "down", "left", "right"} - set(KEYS)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("enter", b"\r"),
        ("Esc", b"\x1b"),
        ("ctrl+c", b"\x03"),
        ("Control-C", b"\x03"),
        ("up", b"\x1b[A"),
        ("shift+up", b"\x1b[1;2A"),
        ("ctrl+shift+left", b"\x1b[1;6D"),
        ("shift+ctrl+left", b"\x1b[1;6D"),
        ("option+b", b"\x1bb"),
        ("alt+-", b"\x1b-"),
        ("shift+tab", b"\x1b[Z"),
        ("page-down", b"\x1b[6~"),
        ("ctrl+page_up", b"\x1b[5;5~"),
        ("f5", b"\x1b[15~"),
        ("command+left", b"\x1b[1;9D"),
    ],
)
def test_a_name_in_any_spelling_gives_the_bytes_of_xterm(name: str, data: bytes) -> None:
    assert key_bytes(name) == data


@pytest.mark.parametrize("name", ["y", "hello world", "ctrl+nothing", "hyper+a", "+", "é"])
def test_an_unknown_name_is_typed_as_it_is(name: str) -> None:
    assert key_bytes(name) == name.encode()
