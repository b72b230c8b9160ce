"""The files of a storm: each holds a text that follows from its name, so that its bytes can be checked."""

from __future__ import annotations

import base64
import hashlib

from model import word_in

from gateway import Attachment

_TYPE = "text/plain"
_LINES = 24
_WINDS = ("bora", "brise", "foehn", "gale", "gust", "mistral", "squall", "zephyr")


def text_of_file(name: str) -> str:
    """Return the content of the file with this name. No line of it is a word of a message."""
    digest = hashlib.shake_128(name.encode()).digest(_LINES)
    return "".join(f"{number}: {_WINDS[byte % len(_WINDS)]}\n" for number, byte in enumerate(digest))


def encoded(name: str) -> str:
    """Return a file's bytes in base64."""
    return base64.b64encode(text_of_file(name).encode()).decode()


def file_for(word: str) -> Attachment:
    """Return the file that goes with the answer to a word."""
    name = f"{word}.txt"
    return Attachment(_TYPE, encoded(name), name)


def piece_of(name: str, data: bytes) -> str:
    """Return the piece of an answer that a file is, with its word after a colon. ``name`` holds the word."""
    word = word_in(name) or name
    whole = data == text_of_file(f"{word}.txt").encode()
    return f"{'file' if whole else 'spoilt file'} of:{word}"
