"""Virtual time for tests of long waits: minutes pass in an instant, and in the right order.

Only for code that waits for timers and for other tasks. What waits for a socket, a thread or a process would
see its timeouts end at once.
"""

from __future__ import annotations

import asyncio
import selectors


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer instead of waiting for it."""

    def __init__(self) -> None:
        self._selector_of_time = _JumpingSelector()
        super().__init__(self._selector_of_time)

    def time(self) -> float:
        """Return the virtual time in seconds; it begins at 0."""
        return self._selector_of_time.now


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready; if nothing is, let the timeout pass."""
        if ready := super().select(None if timeout is None else 0):
            return ready
        self.now += timeout or 0.0
        return []
