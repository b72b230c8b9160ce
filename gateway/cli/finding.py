"""What a check of the doctor finds."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Status = Literal["ok", "warn", "fail"]


class Finding(Struct, frozen=True):
    """How one thing is: in a few words, and what to do about it when it is not well."""

    name: str
    status: Status
    detail: str
    advice: str = ""


def ok(name: str, detail: str) -> Finding:
    """All is well."""
    return Finding(name, "ok", detail)


def warn(name: str, detail: str, advice: str) -> Finding:
    """It works, and may not be what is wanted."""
    return Finding(name, "warn", detail, advice)


def fail(name: str, detail: str, advice: str) -> Finding:
    """The gateway cannot work like this."""
    return Finding(name, "fail", detail, advice)
