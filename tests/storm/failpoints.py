"""Failpoints: exact places in the code at which the gateway is killed. One is armed at a time.

The processes of a storm share a directory: ``armed`` names the point, ``pid`` the gateway's process, and
``hits`` gets a line for every kill that was made this way, and ``stops`` one for every other signal.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

ACCEPTING = "before the accept commit"
SUMMARIZED = "before the commit of a summary"
TASKED = "in the middle of a task"
RETURNED = "after the commit of a task's answer"
_EVERYWHERE = (
    ACCEPTING,
    "accepted, before the ack",
    "at the model's first byte",
    "in mid-stream",
    "between tool intent and tool",
    "after the tool, before its report",
    "before the final commit",
    "after the final commit",
    "before recovery",
    "after recovery",
    "after the claim",
    TASKED,
    RETURNED,
    "in the middle of a summary",
    SUMMARIZED,
    "after the commit of a summary",
)
STOPPED = "after a stop was acknowledged"
DELETED = "after a deletion was acknowledged"
DECIDED = "after an approval was acknowledged"
BETWEEN = "placed, between two changes of the commit"
PRESSED = "after a pressed button was acknowledged"
TOLD = "before the commit of a notice"
KEPT = "after the commit of a notice"
RENEWED = "after the commit of a notice's revision"
INTENDED = "before placing a notice"
REPLACED = "before placing a notice's revision"
PLACED = "after placing a notice, before its commit"
ASKED = "after the commit of an inquiry"
ANSWERED = "after the commit of an answer"
TAKEN = "after an answer was taken"
EDITING = "before the commit of an edit"
EDITED = "after the commit of an edit"
SWITCHED = "after a switch was acknowledged"
QUESTIONED = "after the commit of a model's question"
_OF_INQUIRIES = (ASKED, ANSWERED, TAKEN)
_OF_BUTTONS = (PRESSED, QUESTIONED)
_NO_BUTTONS = ("line", "matrix")
_OF_NOTICES = (TOLD, KEPT, RENEWED, INTENDED, REPLACED, PLACED)
_ON_WEBSOCKETS = (
    "after the ack",
    "after turn_start",
    STOPPED,
    DECIDED,
    QUESTIONED,
    EDITING,
    EDITED,
    SWITCHED,
)
_IN_ROOMS = (
    "before sending the answer",
    BETWEEN,
    "placed and answered, before the commit",
)


def points_of(channels: Sequence[str]) -> tuple[str, ...]:
    """Return the failpoints that exist with these channels."""
    platforms = [name for name in channels if name != "websocket"]
    points = (
        *_EVERYWHERE,
        *(_ON_WEBSOCKETS if "websocket" in channels else ()),
        *((*_IN_ROOMS, *_OF_NOTICES) if platforms else ()),
        *((DELETED,) if "line" in platforms else ()),
        *(_OF_INQUIRIES if any(name != "line" for name in platforms) else ()),
        *(_OF_BUTTONS if any(name not in _NO_BUTTONS for name in platforms) else ()),
        *map(placed_on, platforms),
    )
    return tuple(dict.fromkeys(points))


def placed_on(platform: str) -> str:
    """Return the failpoint between a platform's action and its response."""
    return f"placed, before {platform} answers"


_PATIENCE, _LONGEST_PATIENCE = 0.9, 3.6
"""Seconds to wait for a failpoint before the process is killed at random. A missed one
gets more: on a busy machine few processes reach an answer in the shorter time."""


class Failpoints:
    """The failpoints of one storm, as one of its processes uses them."""

    def __init__(self, directory: Path) -> None:
        self._armed = directory / "armed"
        self._pid = directory / "pid"
        self._hits = directory / "hits"
        self._stops = directory / "stops"

    def arm(self, point: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Arm a point: the next process that reaches it kills the gateway, or sends it another signal."""
        fresh = self._armed.with_suffix(".new")
        fresh.write_text(f"{point}\n{number}")
        fresh.replace(self._armed)

    def disarm(self) -> None:
        """Disarm the point, because no process reached it in time."""
        self._armed.unlink(missing_ok=True)

    def armed(self) -> str | None:
        """Return the armed point."""
        return self._read()[0]

    def _read(self) -> tuple[str | None, int]:
        """Return the point that is armed, and the number of the signal for it."""
        try:
            point, number = self._armed.read_text().splitlines()
        except FileNotFoundError:
            return None, 0
        return point, int(number)

    def target(self, pid: int) -> None:
        """Set the process to kill."""
        fresh = self._pid.with_suffix(".new")
        fresh.write_text(str(pid))
        fresh.replace(self._pid)

    def reach(self, point: str) -> None:
        """Kill or freeze the gateway now if this point is armed."""
        armed, number = self._read()
        if armed != point:
            return
        try:
            self._armed.unlink()
        except FileNotFoundError:
            return  # another process was faster
        pid = int(self._pid.read_text())
        with (self._hits if number == signal.SIGKILL else self._stops).open("a") as hits:
            hits.write(f"{point}\n")
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return

    def hits(self) -> Counter[str]:
        """Return the number of kills at each point."""
        return _counted(self._hits)

    def stops(self) -> int:
        """Return the number of other signals at each point."""
        return _counted(self._stops).total()


def _counted(lines: Path) -> Counter[str]:
    return Counter(lines.read_text().splitlines() if lines.exists() else ())


class Aims:
    """The failpoints to kill at, in random order; those that were never hit come first."""

    def __init__(self, failpoints: Failpoints, points: Sequence[str], dice: random.Random) -> None:
        self._failpoints = failpoints
        self._points = points
        self._dice = dice
        self._to_come: list[str] = []
        self._missed: Counter[str] = Counter()

    def next(self) -> str:
        """Return the next one."""
        if not self._to_come:
            hits = self._failpoints.hits()
            points = [point for point in self._points if not hits[point]] or self._points
            self._to_come = self._dice.sample(points, len(points))
        return self._to_come.pop()

    def drop_hit(self) -> None:
        """Skip the points that were hit already."""
        hits = self._failpoints.hits()
        self._to_come = [point for point in self._to_come if not hits[point]]

    def miss(self, point: str) -> None:
        """Note that one was not reached in time."""
        self._missed[point] += 1

    def patience(self, point: str, least: float = 0.0) -> float:
        """Return how many seconds to wait for one."""
        return max(least, min(_LONGEST_PATIENCE, _PATIENCE * (1 + self._missed[point])))
