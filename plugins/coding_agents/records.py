"""Records of sessions, and their two kinds of status.

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
NoticeKind = Literal["finished", "blocked", "failed", "stopped", "lost", "notice"]

ENDED: frozenset[Status] = frozenset({"stopped", "error", "lost"})
"""The statuses of sessions without a program."""


class AskedQuestion(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A question of a program, to be asked in the chat.

    ``key`` is that of the chat's question: it asks and is answered once. ``id`` is the id of the chat's
    question, "" until it is asked. ``folder`` is where the action would happen.
    """

    key: str
    digest: str
    tool: str
    prompt: str
    detail: str
    folder: str
    at: int
    answerable: bool = True
    id: str = ""


NOT_ASKED = "-"
"""The ``id`` of a question that a rule answered, or that the chat cannot answer."""


class Notice(Struct, frozen=True):
    """A new message for the chat, stored until it is announced. ``key`` announces it once."""

    key: str
    kind: NoticeKind
    text: str


class SessionRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A session of a coding program. Times are milliseconds.

    ``owner`` is the id of its user, ``address`` that of its chat as plain data, ``session`` the chat's
    session. ``machine`` is the whole state of the machine, with the input that is to be typed under ids from
    ``next_id`` downwards; ids up to ``reserved`` may be used. ``key`` is the keeper's, in hex. ``offset`` is
    the end of the output when the record was stored. ``program_session`` is the program's own session, with
    which it continues. ``done_keys`` are those of requests that were done. ``blocked_at`` is the time since
    which the session waits for its user. ``asked`` and ``told`` count questions and notices. ``cost_usd``
    is what the program said that it has cost, None if it does not say. ``node`` is the node of a cluster
    that started it, ``host`` the name of its machine, and ``boot_id`` identifies that until its next boot.
    ``outdated`` are the ids of questions that the chat still shows, and that left the screen.
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
    task_done: bool = False
    model: str = ""
    workspace: str = ""
    spawn_key: str = ""
    home: str = ""
    pid: int = 0
    node: str = ""
    host: str = ""
    boot_id: str = ""
    offset: int = 0
    reserved: int = 0
    machine: Mapping[str, Any] = {}
    question: AskedQuestion | None = None
    outdated: tuple[str, ...] = ()
    notices: tuple[Notice, ...] = ()
    asked: int = 0
    told: int = 0
    done_keys: tuple[str, ...] = ()
    blocked_at: int = 0
    warned: bool = False
    stop_reason: str = ""
    error: str = ""
    exit_status: int | None = None
    ended_at: int = 0
    program_session: str = ""
    version: str = ""
    resumes: str = ""
    cost_usd: float | None = None

    @property
    def public_status(self) -> PublicStatus:
        """The status that users and clients see."""
        return public_status(self.status, self.task_done)

    @property
    def short_id(self) -> str:
        """The last part of the id, which users read and type."""
        return self.id.rpartition("-")[2]

    @property
    def cost(self) -> str:
        """The cost as users read it, such as ``$0.12``; "" if the program reports none."""
        if not self.cost_usd:
            return ""
        return f"${self.cost_usd:.2f}" if self.cost_usd >= 0.01 else "<$0.01"

    @property
    def is_ended(self) -> bool:
        """Return whether its program has ended."""
        return self.status in ENDED

    @property
    def without_question(self) -> Mapping[str, Any]:
        """The changes after which the session asks nothing, and its chat withdraws what it asked."""
        asked = self.question
        shown = (asked.id,) if asked is not None and asked.id not in ("", NOT_ASKED) else ()
        return {"question": None, "outdated": (*self.outdated, *shown)}


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
