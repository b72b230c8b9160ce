"""Names of keys and the bytes that an xterm sends for them."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from itertools import product

KEY_GAP_MS = 50
"""The pause between the keys of a sequence, so that a program does not take them for a paste."""

_ALIASES = {
    "control": "ctrl",
    "option": "alt",
    "command": "meta",
    "cmd": "meta",
    "opt": "alt",
    "super": "meta",
    "return": "enter",
    "esc": "escape",
    "del": "delete",
    "ins": "insert",
    "pgup": "pageup",
    "pgdn": "pagedown",
    "arrowup": "up",
    "arrowdown": "down",
    "arrowleft": "left",
    "arrowright": "right",
    "cr": "enter",
    "spacebar": "space",
    "bs": "backspace",
}
_MODIFIERS = {
    "shift": 2,
    "alt": 3,
    "shift+alt": 4,
    "ctrl": 5,
    "ctrl+shift": 6,
    "ctrl+alt": 7,
    "ctrl+shift+alt": 8,
    "meta": 9,
}
"""The numbers of xterm; the parts of each name are in the order of ``_ORDER``."""
_ORDER = ("ctrl", "shift", "alt", "meta")
_SEPARATOR = re.compile(r"[+\- ](?=.)")
"""Names are joined by "+", "-" or a space; the key itself may be one of these."""
_CURSOR_KEYS = {"up": "A", "down": "B", "right": "C", "left": "D", "home": "H", "end": "F"}
_NUMBERED = {"insert": 2, "delete": 3, "pageup": 5, "pagedown": 6}
_FUNCTION = {5: 15, 6: 17, 7: 18, 8: 19, 9: 20, 10: 21, 11: 23, 12: 24}


def _table() -> Mapping[str, bytes]:
    keys: dict[str, bytes] = {
        "enter": b"\r",
        "tab": b"\t",
        "escape": b"\x1b",
        "space": b" ",
        "backspace": b"\x7f",
        "shift+tab": b"\x1b[Z",
        "alt+enter": b"\x1b\r",
        "shift+enter": b"\x1b[13;2u",
        "linefeed": b"\n",
        "alt+backspace": b"\x1b\x7f",
        "ctrl+backspace": b"\x08",
        "ctrl+space": b"\x00",
        "ctrl+[": b"\x1b",
        "ctrl+\\": b"\x1c",
        "ctrl+]": b"\x1d",
        "ctrl+^": b"\x1e",
        "ctrl+_": b"\x1f",
    }
    for number, letter in enumerate(string.ascii_lowercase, 1):
        keys[f"ctrl+{letter}"] = bytes([number])
        keys[f"ctrl+alt+{letter}"] = b"\x1b" + bytes([number])
    for character in string.ascii_lowercase + string.digits + "+-.,/":
        keys[f"alt+{character}"] = keys[f"meta+{character}"] = b"\x1b" + character.encode()
    finals = {**_CURSOR_KEYS, "f1": "P", "f2": "Q", "f3": "R", "f4": "S"}
    for name, final in finals.items():
        keys[name] = f"\x1b{'[' if name in _CURSOR_KEYS else 'O'}{final}".encode()
    numbered = {**_NUMBERED, **{f"f{n}": code for n, code in _FUNCTION.items()}}
    for name, number in numbered.items():
        keys[name] = f"\x1b[{number}~".encode()
    for (modifier, code), name in product(_MODIFIERS.items(), (*finals, *numbered)):
        shape = f"\x1b[1;{code}{finals[name]}" if name in finals else f"\x1b[{numbered[name]};{code}~"
        keys[f"{modifier}+{name}"] = shape.encode()
    return keys


KEYS = _table()
"""The bytes of each key. Modifiers are in the order ctrl, shift, alt, meta."""


def key_bytes(name: str) -> bytes:
    """Return the bytes of a key by its name in any spelling; an unknown name is typed as it is."""
    if name in KEYS:
        return KEYS[name]
    spelled = re.sub(r"(page|arrow)[-_ ]?(up|down|left|right)", r"\1\2", name.strip().lower())
    *given, last = [_ALIASES.get(part, part) for part in _SEPARATOR.split(spelled)]
    modifiers = [part for part in _ORDER if part in given]
    known = KEYS.get("+".join((*modifiers, last))) if len(modifiers) == len(given) else None
    return name.encode() if known is None else known
