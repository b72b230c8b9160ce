"""The places of a plugin on the chat page: a text in the status line, and a panel of Markdown.

Both name the plugin and are rendered without HTML, scripts and pictures, as texts of models are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct, structs

from gateway.contract.errors import InvalidRequestError
from gateway.contract.plugin import PluginContext, StatusSegment
from gateway.extensions.admission.fields import invisible
from gateway.extensions.admission.manifest import MANIFEST, Manifest

_LONGEST_STATUS = 120
_LONGEST_PANEL = 16_000


class _Status(Struct, frozen=True):
    text: str
    color: Literal["", "red", "green", "yellow"] = ""


class _Panel(Struct, frozen=True):
    text: str


class PagePlaces:
    """The places that the manifest of a plugin lists; what the process may call to fill them."""

    def __init__(self, manifest: Manifest) -> None:
        self._plugin = manifest.name
        self._declared = manifest.page
        self._context: PluginContext | None = None
        self.calls: Mapping[str, Callable[[Any], None]] = {
            "page.status": self._show_status,
            "page.panel": self._show_panel,
        }

    def open(self, context: PluginContext) -> None:
        """Show from now on what the process sends; the context takes it back when the plugin ends."""
        self._context = context

    def close(self) -> None:
        """Show nothing any more."""
        context, self._context = self._context, None
        if context is not None:
            context.set_status_line([])
            if context.set_panel is not None:
                context.set_panel("")

    def _show_status(self, params: Any) -> None:
        call = self._checked(params, _Status, "status", _LONGEST_STATUS)
        if "\n" in call.text:
            raise InvalidRequestError("page.status: the text must be one line")
        shown = [StatusSegment(f"{self._plugin}: {call.text}", call.color or None)] if call.text else []
        if self._context is not None:
            self._context.set_status_line(shown)

    def _show_panel(self, params: Any) -> None:
        call = self._checked(params, _Panel, "panel", _LONGEST_PANEL)
        if self._context is not None and self._context.set_panel is not None:
            self._context.set_panel(call.text.strip())

    def _checked(self, params: Any, kind: type[Any], place: Literal["status", "panel"], most: int) -> Any:
        if place not in self._declared:
            raise InvalidRequestError(f"page.{place} needs a line in {MANIFEST}: page: [{place}]")
        try:
            call = msgspec.convert(params, kind)
        except msgspec.ValidationError as error:
            raise InvalidRequestError(f"page.{place}: {error}") from None
        if len(call.text) > most:
            raise InvalidRequestError(f"page.{place}: the text has more than {most:,} characters")
        # Characters that reorder a line could make it look like one of the gateway.
        return structs.replace(call, text="".join(each for each in call.text if invisible(each) is None))
