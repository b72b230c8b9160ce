"""The events of sessions on the gateway's bus; their names are those of the seed, after ``coding_agents.``.

In: what happened to a session, once it is durable. Out: frozen events for other plugins.
"""

from __future__ import annotations

from gateway.events import BusEvent


class SessionStarted(BusEvent, frozen=True, tag="coding_agents.session_started"):
    """A session whose program was started. ``id`` is that of the agent, ``session`` that of the chat."""

    session: str
    id: str
    agent: str


class SessionReady(BusEvent, frozen=True, tag="coding_agents.session_ready"):
    """A program that takes its first text."""

    session: str
    id: str
    agent: str


class SessionStopped(BusEvent, frozen=True, tag="coding_agents.session_stopped"):
    """A program that ended as it should. ``reason`` is exit, user, idle or blocked."""

    session: str
    id: str
    agent: str
    reason: str
    exit_status: int | None = None


class SessionFailed(BusEvent, frozen=True, tag="coding_agents.session_error"):
    """A session that failed or was lost."""

    session: str
    id: str
    agent: str
    error: str


class SessionStatusChanged(BusEvent, frozen=True, tag="coding_agents.session_status_changed"):
    """A new status of a session."""

    session: str
    id: str
    agent: str
    status: str
    public_status: str


class LoginRequired(BusEvent, frozen=True, tag="coding_agents.login_required"):
    """A program that wants its user to log in."""

    session: str
    id: str
    agent: str
    instructions: str
    url: str


class AuthRequired(BusEvent, frozen=True, tag="coding_agents.auth_required"):
    """The way in which a program wants its user to log in. ``prompt_snippet`` has at most 280 characters."""

    session: str
    id: str
    agent: str
    method: str
    instructions: str
    url: str
    device_code: str
    prompt_snippet: str


class BlockingPrompt(BusEvent, frozen=True, tag="coding_agents.blocking_prompt"):
    """A question of a program. ``auto_responded``: a rule answers it, and no user is asked."""

    session: str
    id: str
    agent: str
    type: str
    prompt: str
    tool: str
    detail: str
    auto_responded: bool


class StallDetected(BusEvent, frozen=True, tag="coding_agents.stall_detected"):
    """A screen that has not changed for ``ms`` milliseconds; ``recent_output`` is untrusted."""

    session: str
    id: str
    agent: str
    recent_output: str
    ms: int


class TaskComplete(BusEvent, frozen=True, tag="coding_agents.task_complete"):
    """A task that the program has finished; ``output`` is its last answer, as far as it is on the screen."""

    session: str
    id: str
    agent: str
    output: str


class ToolRunning(BusEvent, frozen=True, tag="coding_agents.tool_running"):
    """A step of the program that runs."""

    session: str
    id: str
    agent: str
    activity: str


class KeeperAttached(BusEvent, frozen=True, tag="keeper:attached"):
    """A gateway that is connected with the terminal of a session."""

    session: str
    id: str


class KeeperLost(BusEvent, frozen=True, tag="keeper:lost"):
    """A terminal whose process has ended without the gateway."""

    session: str
    id: str
    reason: str
