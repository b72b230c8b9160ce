"""A call of the bot and its answer, as the parts of the fake hand them on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from msgspec import Struct

from channels.discord.fake.errors import invalid


class Upload(Struct, frozen=True):
    """A file that came with a call, under ``files[index]``."""

    index: int
    filename: str
    data: bytes


class ApiCall(Struct, frozen=True, kw_only=True):
    """One call. ``name`` is its verb and path template, ``path`` what stands in the template's gaps."""

    name: str
    path: Mapping[str, str]
    query: Mapping[str, str] = {}
    body: Any = None
    files: tuple[Upload, ...] = ()

    def id(self, name: str) -> int:
        """An id from the path. Raises ApiError."""
        given = self.path[name]
        if not given.isdecimal():
            raise invalid(name, "NUMBER_TYPE_COERCE", f'Value "{given}" is not snowflake.')
        return int(given)

    @property
    def arguments(self) -> dict[str, Any]:
        """Everything that was given, for the transcript."""
        given: dict[str, Any] = {**self.path, **self.query}
        if isinstance(self.body, dict):
            given |= cast("dict[str, Any]", self.body)
        elif self.body is not None:
            given["body"] = self.body
        if self.files:
            given["files"] = [file.filename for file in self.files]
        return given

    def major(self) -> str:
        """What a limit on the rate of calls is counted for: a channel, a guild, a webhook with its token."""
        keys = ("channel_id", "guild_id", "webhook_id", "webhook_token")
        return ":".join(self.path[key] for key in keys if key in self.path)


class Answer(Struct, frozen=True):
    """What a call is answered. ``problem`` is what is wrong with it although it was done."""

    status: int = 204
    body: Any = None
    problem: str | None = None


Handler = Callable[[ApiCall], Answer]
