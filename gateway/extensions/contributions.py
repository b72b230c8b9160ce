"""Contributions that plugins register at run time, and the UI service of a gateway without an operator."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import structlog
from msgspec import structs

from gateway.contract.plugin import MentionCompletion, MentionProvider, StatusSegment
from gateway.contract.services import NoticeLevel, Unregister
from gateway.events.bus import EventBus
from gateway.events.types import ContributionsChanged

log = structlog.get_logger("trunkline.registry")
ui_log = structlog.get_logger("trunkline.ui")


def choices_trigger(command: str) -> str:
    """Return the trigger of the completions of a slash command."""
    return f"/{command} "


class Contributions:
    """Entries by plugin, kind and key; each can be removed, and changes emit ``ContributionsChanged``."""

    def __init__(self, events: EventBus | None = None) -> None:
        self.events = EventBus() if events is None else events
        self.status: dict[str, tuple[StatusSegment, ...]] = {}
        self.panels: dict[str, str] = {}
        self._entries: list[tuple[str, str, str, Any]] = []

    def add(self, plugin: str, kind: str, key: str, value: Any) -> Unregister:
        """Add an entry of a kind (``renderer``, ``shortcut``, ``mention``) for a plugin."""
        entry = (plugin, kind, key, value)
        self._entries.append(entry)
        self._tell(kind)

        def remove() -> None:
            if entry in self._entries:
                self._entries.remove(entry)
                self._tell(kind)

        return remove

    def add_choices(self, plugin: str, command: str, choices: MentionProvider) -> Unregister:
        """Complete the text after a slash command with its choices, those that begin with it first."""
        trigger = choices_trigger(command)

        async def complete(partial: str) -> list[MentionCompletion]:
            found, typed = choices(partial), partial.lower()
            offers = [
                structs.replace(one, value=trigger + one.value, label=one.label or one.value)
                for one in (await found if inspect.isawaitable(found) else found)
                if typed in one.value.lower()
            ]
            return sorted(offers, key=lambda one: not one.value.lower().startswith(trigger + typed))

        return self.add(plugin, "mention", trigger, complete)

    def find(self, kind: str, key: str) -> tuple[Any, ...]:
        """Return all values of a kind and key, oldest first."""
        return tuple(value for _, k, name, value in self._entries if k == kind and name == key)

    def keys(self, kind: str) -> tuple[str, ...]:
        """Return all keys of a kind, oldest first."""
        return tuple(dict.fromkeys(key for _, k, key, _ in self._entries if k == kind))

    async def press(self, key: str) -> bool:
        """Run the first handler of a key. Returns whether there is one, which consumes the key."""
        for handler in self.find("shortcut", key)[:1]:
            try:
                pressed = handler()
                if inspect.isawaitable(pressed):
                    await pressed
            except Exception:
                log.exception("a shortcut failed", key=key)
            return True
        return False

    async def complete(self, trigger: str, partial: str) -> tuple[MentionCompletion, ...]:
        """Return the completions of a trigger for a partial text; an empty result shows no picker."""
        offers: list[MentionCompletion] = []
        for provider in self.find("mention", trigger):
            try:
                found = provider(partial)
                offers += await found if inspect.isawaitable(found) else found
            except Exception:
                log.exception("a completer failed", trigger=trigger)
        return tuple(structs.replace(offer, label=offer.label or offer.value) for offer in offers)

    def set_status(self, plugin: str, segments: Iterable[StatusSegment]) -> Unregister:
        """Replace a plugin's status segments and notify listeners of a change; the result clears them."""
        new = tuple(segments)
        if new != self.status.get(plugin, ()):
            if new:
                self.status[plugin] = new
            else:
                self.status.pop(plugin, None)
            self._tell("status")
        return partial(self._clear_status, plugin)

    def _clear_status(self, plugin: str) -> None:
        if self.status.pop(plugin, None):
            self._tell("status")

    def set_panel(self, plugin: str, markdown: str) -> Unregister:
        """Replace a plugin's panel, "" for none, and notify listeners of a change; the result clears it."""
        if markdown != self.panels.get(plugin, ""):
            self.panels[plugin] = markdown
            self._tell("panel")

        def clear() -> None:
            if self.panels.pop(plugin, ""):
                self._tell("panel")

        return clear

    def place_of(self, plugin: str) -> int:
        """Return the number of entries before the first one of a plugin."""
        return next((i for i, entry in enumerate(self._entries) if entry[0] == plugin), len(self._entries))

    def move(self, plugin: str, place: int) -> None:
        """Move the entries of a plugin behind the first ``place`` entries of others."""
        own = [entry for entry in self._entries if entry[0] == plugin]
        others = [entry for entry in self._entries if entry[0] != plugin]
        self._entries = [*others[:place], *own, *others[place:]]

    def on_change(self, kind: str, listener: Callable[[], None]) -> Unregister:
        """Call ``listener`` whenever entries of a kind (or ``status``) change."""

        def changed(event: ContributionsChanged) -> None:
            if event.kind == kind:
                listener()

        return self.events.subscribe(ContributionsChanged, changed)

    def _tell(self, kind: str) -> None:
        if self.events.wants(ContributionsChanged):
            self.events.emit(ContributionsChanged(kind))


class ConsoleUI:
    """The UI service of a gateway without an operator: logs notices, answers questions at once, never yes."""

    def notify(self, message: str, level: NoticeLevel = "info") -> None:
        """Write the notice to the ui_log."""
        write = {"error": ui_log.error, "warning": ui_log.warning}.get(level, ui_log.info)
        write(message, level=level)

    async def confirm(self, title: str, message: str) -> bool:
        """Return False: no operator can confirm."""
        ui_log.info(f"{title}: {message} (answered no: there is no operator)")
        return False

    async def select(self, title: str, options: Sequence[str]) -> str | None:
        """Return the first option, or None."""
        return options[0] if options else None

    async def input(self, title: str, placeholder: str = "") -> str | None:
        """Return None."""
        return None
