"""How long rendering an answer holds up the event loop: big and hostile ones, everywhere.

Prints one line of JSON: milliseconds of CPU of the longest step between two pauses, for a finished message,
for a streaming one, and for the pages of platforms, with the input each took longest for; and as the floor
what parsing 4,000 characters of prose takes.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass

from craft import RENDERERS, prose
from markdown_it import MarkdownIt

from channels.websocket.render import HtmlView
from gateway import Complete, Message, Metadata, TextPart
from gateway.channel import Event, MessageFrame
from gateway.delivery.pages import is_quickly_paginated
from gateway.provider_http import DeltaWriter
from gateway.server.pages.blocks import clear_block_cache

_ROUNDS, _DELTA = 3, 64
_WIDE = "|" + "a|" * 18 + "\n|" + "-|" * 18 + "\n"
_PROSE = "A ship passed, and the keeper wrote `down` its **name** & [hour](https://example.org/x). "


def _text(piece: str, length: int = 61_000, opening: str = "") -> str:
    return opening + (piece * (length // len(piece) + 1))[:length]


INPUTS: Mapping[str, str] = {
    "a table of wide rows": _text("|" + "**a**|" * 18 + "\n", opening=_WIDE),
    "a table of short rows": _text("|a\n", opening=_WIDE),
    "a table of many rows": _text("|a|b|\n", opening="|a|b|\n|-|-|\n"),
    "many tables": _text("|a|b|\n|-|-|\n|**a**|b|\n\n"),
    "a megabyte of prose": _text(_PROSE * 6 + "\n\n", 1_000_000),
    "one paragraph of a megabyte": _text(_PROSE + "\n", 1_000_000),
    "one line of a megabyte": _text(_PROSE, 1_000_000),
    "nested lists": _text("".join("  " * depth + "- x\n" for depth in range(8))),
    "items": _text("1) **x**\n"),
    "nested quotes": _text("".join("> " * depth + "x\n" for depth in range(30))),
    "quotes": _text("> x *a*\n>\n"),
    "many blocks of code": _text("```python\nx = 1\n```\n\n"),
    "a block of code": _text("for i in range(10): print(f'{i}')\n", 200_000, "```python\n") + "\n```\n",
    "a coloured block of code": _text("((((a<b<c\n", 19_000, "```cpp\n") + "\n```\n",
    "links": _text("[a](http://a.example) [b](https://b.example)\n\n"),
    "emphasis": _text(_text("_*", 2_400) + "\n\n"),
    "brackets": _text(_text("[a](", 1_000) + "\n\n"),
    "lines": _text("a\n"),
    "formulas": _text("$x^2 + \\frac{a}{b}$ and\n\n"),
    "open formulas": _text("$$\nx\n\n"),
}


@dataclass
class Hold:
    """The longest step. Milliseconds of CPU."""

    longest: float
    input: str


def longest_step(steps: Iterable[object]) -> float:
    """Return the milliseconds of CPU of the longest step of an iterator."""
    longest, begun = 0.0, time.thread_time()
    for _ in steps:
        now = time.thread_time()
        longest, begun = max(longest, now - begun), time.thread_time()
    return 1e3 * max(longest, time.thread_time() - begun)


def finished(text: str) -> float:
    """Render a finished message for the page."""
    clear_block_cache()
    event = Event("s", 1, MessageFrame(_message(text)))
    return longest_step(HtmlView().frames(event))


def streaming(text: str) -> float:
    """Render a message for the page while it is made, delta by delta."""
    clear_block_cache()
    view, write = HtmlView(), DeltaWriter("m")
    frames = [write.text(text[at : at + _DELTA]) for at in range(0, len(text), _DELTA)]
    events = [Event("s", seq, frame) for seq, frame in enumerate(frames)]
    events.append(Event("s", len(events), Complete("m", Metadata(), "end_turn")))
    return max(longest_step(view.frames(event)) for event in events)


def paged(platform: str) -> Callable[[str], float]:
    """Return what cuts the longest answer into pages that is not cut in a thread."""

    def cut(text: str) -> float:
        message = _message(text)
        while not is_quickly_paginated(message):
            text = text[: len(text) * 3 // 4]
            message = _message(text)
        return longest_step(map(RENDERERS[platform], (message,)))

    return cut


def hold(render: Callable[[str], float], rounds: int = _ROUNDS) -> Hold:
    """Return the longest step over all inputs, each when nothing disturbs it: the best of some rounds.

    Platforms remember what they measured, so for them there is only one.
    """
    seen: list[Hold] = []
    gc.freeze()  # the inputs would be looked at in each collection
    for name, text in INPUTS.items():
        gc.collect()
        seen.append(Hold(min(render(text) for _ in range(rounds)), name))
    return max(seen, key=lambda one: one.longest)


def floor() -> float:
    """Return what parsing some prose takes a bare parser."""
    parser, text = MarkdownIt("commonmark"), prose(1).text
    return min(longest_step(map(parser.render, (text,))) for _ in range(_ROUNDS))


def _message(text: str) -> Message:
    return Message(id="a", session_id="s", role="assistant", parts=(TextPart(text),))


if __name__ == "__main__":
    holds = {"finished": hold(finished), "streaming": hold(streaming)}
    holds |= {platform: hold(paged(platform), rounds=1) for platform in RENDERERS}
    print(json.dumps({"floor": floor(), **{name: asdict(one) for name, one in holds.items()}}), flush=True)
