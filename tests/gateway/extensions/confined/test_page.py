"""The places of a plugin on the chat page: what a process may show there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from gateway import PluginContext, StatusSegment
from gateway.contract.errors import InvalidRequestError
from gateway.extensions.admission.consent import describe_rest
from gateway.extensions.admission.manifest import Manifest, PageSlot
from gateway.extensions.confined.page import PagePlaces


class Shown:
    """A context that keeps what is shown."""

    def __init__(self) -> None:
        self.status: Sequence[StatusSegment] = ()
        self.panel = ""

    def set_status_line(self, segments: Sequence[StatusSegment]) -> None:
        self.status = segments

    def set_panel(self, markdown: str) -> None:
        self.panel = markdown


def places(*declared: PageSlot) -> tuple[PagePlaces, Shown]:
    made, shown = PagePlaces(Manifest("weather", "1.0", page=declared)), Shown()
    made.open(cast("PluginContext", shown))
    return made, shown


def test_the_status_names_the_plugin_and_both_places_are_cleared() -> None:
    made, shown = places("status", "panel")
    made.calls["page.status"]({"text": "3 open\u202e", "color": "red", "session": "s"})
    made.calls["page.panel"]({"text": "**Rain**\n"})
    assert [*shown.status] == [StatusSegment("weather: 3 open", "red")]
    assert shown.panel == "**Rain**"
    made.close()
    assert ([*shown.status], shown.panel) == ([], "")


@pytest.mark.parametrize(
    ("declared", "call", "params", "said"),
    [
        (("panel",), "page.status", {"text": "x"}, r"needs a line in plugin.yml: page: \[status\]"),
        (("status",), "page.panel", {"text": "x"}, r"needs a line in plugin.yml: page: \[panel\]"),
        (("status",), "page.status", {"text": "a\nb"}, "must be one line"),
        (("status",), "page.status", {"text": "x" * 121}, "more than 120 characters"),
        (("status",), "page.status", {"text": "x", "color": "pink"}, "Invalid enum value"),
        (("panel",), "page.panel", {"text": "x" * 16_001}, "more than 16,000 characters"),
        (("panel",), "page.panel", {"text": 1}, "Expected `str`"),
        (("panel",), "page.panel", None, "Expected `object`"),
    ],
)
def test_what_cannot_be_shown_is_refused(
    declared: tuple[PageSlot, ...], call: str, params: Any, said: str
) -> None:
    made, shown = places(*declared)
    with pytest.raises(InvalidRequestError, match=said):
        made.calls[call](params)
    assert (shown.status, shown.panel) == ((), "")


def test_the_installer_says_where_it_shows_text() -> None:
    told = [*describe_rest(Manifest("weather", "1.0", page=("status", "panel")))]
    assert told == ["shows text on the chat page, in the status line and a panel"]
