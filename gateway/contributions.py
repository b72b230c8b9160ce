"""What plugins contribute beside their classes, and may take back: renderers, shortcuts, mentions, status."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import structlog
from msgspec import structs

from gateway.plugin import MentionCompletion, StatusSegment, Unregister

log = structlog.get_logger("trunkline.registry")


class Contributions:
    """What plugins registered beside their classes: renderers, shortcuts, mentions, status segments."""

    def __init__(self) -> None:
        self.status: dict[str, tuple[StatusSegment, ...]] = {}
        self._entries: list[tuple[str, str, str, Any]] = []
        self._changed: dict[str, list[Callable[[], None]]] = {}

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

    def find(self, kind: str, key: str) -> tuple[Any, ...]:
        """All values of a kind under a key, oldest first."""
        return tuple(value for _, k, name, value in self._entries if k == kind and name == key)

    async def press(self, key: str) -> bool:
        """Run the first handler of a key. Returns whether there is one: then the key is used up."""
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
        """What the completers of a trigger offer for a beginning; nothing means that no picker is shown."""
        offers: list[MentionCompletion] = []
        for provider in self.find("mention", trigger):
            try:
                found = provider(partial)
                offers += await found if inspect.isawaitable(found) else found
            except Exception:
                log.exception("a completer failed", trigger=trigger)
        return tuple(structs.replace(offer, label=offer.label or offer.value) for offer in offers)

    def set_status(self, plugin: str, segments: Iterable[StatusSegment]) -> None:
        """Replace a plugin's part of the status line; the same again tells nobody, nothing clears it."""
        new = tuple(segments)
        if new == self.status.get(plugin, ()):
            return
        if new:
            self.status[plugin] = new
        else:
            self.status.pop(plugin, None)
        self._tell("status")

    def drop(self, plugin: str) -> None:
        """Remove everything of a plugin."""
        kinds = {kind for owner, kind, _, _ in self._entries if owner == plugin}
        self._entries = [entry for entry in self._entries if entry[0] != plugin]
        for kind in sorted(kinds):
            self._tell(kind)
        self.set_status(plugin, ())

    def on_change(self, kind: str, listener: Callable[[], None]) -> Unregister:
        """Call ``listener`` whenever entries of a kind (or ``status``) change."""
        listeners = self._changed.setdefault(kind, [])
        listeners.append(listener)
        return lambda: listeners.remove(listener) if listener in listeners else None

    def _tell(self, kind: str) -> None:
        for listener in tuple(self._changed.get(kind, ())):
            listener()
