"""Events with every JSON type in every place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_ADA = "@ada:fake.example"
_VALUES: Sequence[Any] = (None, 5, -1.5, True, "x", [], [{}], {}, {"a": None})


def _message(content: Any, number: str, **more: Any) -> dict[str, Any]:
    return {"type": "m.room.message", "sender": _ADA, "event_id": f"$bad{number}", "content": content, **more}


def _events() -> Sequence[Any]:
    made: list[Any] = list(_VALUES)
    for at, value in enumerate(_VALUES):
        made.append(_message(value, f"content{at}"))
        for field in ("type", "sender", "event_id", "state_key", "redacts", "origin_server_ts", "unsigned"):
            made.append({**_message({"body": 5}, f"{field}{at}"), field: value})
        for kind in ("m.replace", "m.thread", "m.annotation", value):
            related = {"rel_type": kind, "event_id": value, "key": value, "m.in_reply_to": value}
            content = {"m.relates_to": related, "m.new_content": value, "body": 5}
            made.append(_message(content, f"relation{at}{kind}"))
            made.append({**_message(content, f"reaction{at}{kind}"), "type": "m.reaction"})
        made.append(_message({"body": [value], "msgtype": value}, f"body{at}"))
        made.append(_message({"body": 7, "msgtype": "m.file", "url": value, "info": value}, f"file{at}"))
        made.append({**_message(value, f"member{at}"), "type": "m.room.member", "state_key": value})
        made.append({**_message({"redacts": value}, f"redaction{at}"), "type": "m.room.redaction"})
        made.append({**_message(value, f"unknown{at}"), "type": "org.example.unknown"})
    return made


MALFORMED: Sequence[Any] = _events()
