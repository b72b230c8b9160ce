"""What shows that the app is at work: ``assistant.threads.*`` and ``agents.sessions.*``."""

from __future__ import annotations

from channels.slack.fake.asking import Asked, RefusalError, invalid, objects
from channels.slack.fake.state import Session
from channels.slack.fake.workspace import Json, Room

STATUS_LIFE = 2 * 60
MOST_PROMPTS = 4
LONGEST_TITLE = 200


def set_status(asked: Asked) -> Json:
    """``assistant.threads.setStatus``: shows for two minutes, or until the app says something."""
    room, root = _thread(asked)
    key = (room.id, root)
    if asked["status"]:
        asked.state.statuses[key] = (asked["status"], asked.state.clock.now() + STATUS_LIFE)
    else:
        asked.state.statuses.pop(key, None)
    asked.state.changed()
    return {}


def set_title(asked: Asked) -> Json:
    """``assistant.threads.setTitle``."""
    room, root = _thread(asked)
    asked.state.titles[room.id, root] = asked["title"]
    asked.state.changed()
    return {}


def set_prompts(asked: Asked) -> Json:
    """``assistant.threads.setSuggestedPrompts``."""
    prompts = objects(asked["prompts"], "prompts")
    if len(prompts) > MOST_PROMPTS:
        raise invalid(f"no more than {MOST_PROMPTS} items allowed [json-pointer:/prompts]")
    for prompt in prompts:
        if not isinstance(prompt.get("title"), str) or not isinstance(prompt.get("message"), str):
            raise invalid("missing required field: title [json-pointer:/prompts]")
    if not asked.state.switches.agent:
        raise RefusalError("not_agent_app")
    room = _room(asked)
    root = asked.get("thread_ts", "")
    if root and root not in room.messages:
        raise RefusalError("invalid_thread_ts", detail="Thread not found")
    asked.state.prompts[room.id, root] = {"title": asked.get("title"), "prompts": prompts}
    asked.state.changed()
    return {}


def set_session_status(asked: Asked) -> Json:
    """``agents.sessions.setStatus``: begins a session, or sets the status of one."""
    room, root = _session_thread(asked)
    if asked.get("initiator_user_id", asked.grant.user) not in asked.team.users:
        raise RefusalError("user_not_found")
    session = asked.state.sessions.setdefault((room.id, root), Session(status="", title=asked.get("title")))
    session.status = asked["status"]
    asked.state.changed()
    if session.status == "processing" and not asked.state.subscribed("agent_session_stopped"):
        asked.warnings.append("missing_agent_session_stopped_event_subscription")
    title = {"title": session.title} if session.title else {}
    return {"status": session.status, "agent_status": session.status, **title}


def rename_session(asked: Asked) -> Json:
    """``agents.sessions.rename``."""
    room, root = _session_thread(asked)
    session = asked.state.sessions.get((room.id, root))
    if session is None:
        raise RefusalError("session_not_found")
    session.title = asked["title"]
    asked.state.changed()
    return {"title": session.title}


def _room(asked: Asked) -> Room:
    try:
        return asked.room("channel_id")
    except RefusalError:
        raise RefusalError("channel_not_found", detail="Invalid channel_id") from None


def _thread(asked: Asked) -> tuple[Room, str]:
    room = _room(asked)
    if asked["thread_ts"] not in room.messages:
        raise RefusalError("invalid_thread_ts", detail="Thread not found")
    return room, asked["thread_ts"]


def _session_thread(asked: Asked) -> tuple[Room, str]:
    if not asked.state.switches.agent:
        raise RefusalError("feature_disabled")
    room = asked.room("channel_id", inside=False)
    if asked.grant.user not in room.members:
        raise RefusalError("not_authorized")
    root = asked.get("thread_ts")
    if root not in room.messages:
        raise RefusalError("thread_ts_required", None if root else "a session belongs to a thread")
    return room, root
