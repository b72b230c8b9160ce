"""What is stored of each session, and its two kinds of status.

In: facts of sessions. Out: frozen records, as JSON in the plugin's table ``sessions``. Every module of the
package may import it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

Status = Literal[
    "pending",
    "starting",
    "authenticating",
    "ready",
    "busy",
    "blocked",
    "stopping",
    "stopped",
    "error",
    "lost",
]
"""The status of a session within the plugin. ``lost``: its program ended without the gateway's notice."""
PublicStatus = Literal["running", "blocked", "completed", "error"]
"""The status that users and clients see."""
Choice = Literal["once", "always", "deny"]
"""An answer to a question of a program."""

ENDED: frozenset[Status] = frozenset({"stopped", "error", "lost"})
"""The statuses of sessions without a program."""


class Typing(Struct, frozen=True):
    """Input that is to be typed once, stored before it is typed.

    ``id`` is its command id at the keeper. ``text`` waits until the program is ready; ``keys`` are typed at
    once. ``digest`` is that of the question which they answer, "" for other input.
    """

    id: int
    text: str = ""
    keys: tuple[str, ...] = ()
    digest: str = ""


class AskedQuestion(Struct, frozen=True):
    """A question of a program that is asked in the chat. ``id`` is that of the chat's question."""

    id: str
    key: str
    digest: str
    tool: str
    detail: str
    folder: str
    prompt: str
    at: int


class SessionRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A session of a coding program. Times are milliseconds.

    ``owner`` is the id of its user, ``address`` that of its chat as plain data, ``session`` the chat's
    session. ``task_done``: the program has finished the last task. ``next_command_id`` is the next one for
    the keeper; what was typed with an earlier one is never typed again. ``key`` is the keeper's, in hex.
    ``resume`` is what the program needs to continue a lost session.
    """

    id: str
    agent: str
    status: Status
    owner: str
    workdir: str
    created_at: int
    last_activity: int
    key: str
    address: Mapping[str, Any] = {}
    session: str = ""
    task: str = ""
    task_sent: bool = False
    task_done: bool = False
    model: str = ""
    workspace: str = ""
    spawn_key: str = ""
    pid: int = 0
    boot_id: str = ""
    offset: int = 0
    next_command_id: int = 1
    typing: tuple[Typing, ...] = ()
    question: AskedQuestion | None = None
    used_rules: tuple[str, ...] = ()
    since: int = 0
    error: str = ""
    exit_status: int | None = None
    ended_at: int = 0
    resume: str = ""
    resumed_by: str = ""
    told_blocked: bool = False

    @property
    def public_status(self) -> PublicStatus:
        """The status that users and clients see."""
        return public_status(self.status, self.task_done)

    @property
    def short_id(self) -> str:
        """The last part of the id, which users read and type."""
        return self.id.rpartition("-")[2]

    @property
    def is_ended(self) -> bool:
        """Return whether its program has ended."""
        return self.status in ENDED


def public_status(status: Status, task_done: bool = False) -> PublicStatus:
    """Return the status that users see for one within the plugin."""
    match status:
        case "authenticating" | "blocked":
            return "blocked"
        case "error" | "lost":
            return "error"
        case "stopped":
            return "completed"
        case "ready" if task_done:
            return "completed"
        case _:
            return "running"
