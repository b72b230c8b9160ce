"""Names of the users, channels and user groups of one workspace: loaded on demand, kept for some hours."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable
from time import monotonic
from typing import cast

import structlog
from msgspec import Struct

from channels.slack.api import Api, Json, RefusedError
from gateway.channel import PlacementDeferred, PlacementRefused, PlacementUncertain

log = structlog.get_logger("trunkline.slack")

_FRESH_SECONDS = 6 * 3600.0
"""Lifetime of a name; changes are reported by events, which may be missed while there is no connection."""
_FAILED_SECONDS, _REFUSED_SECONDS = 30.0, 600.0
"""Seconds before a name is asked for again, after a failed call and after a refusal of Slack."""
_MOST_ENTRIES = 5_000
_MOST_LOADING = 50
_MOST_IDS = 20
"""Ids of one message whose names are loaded."""
_LONGEST = 200


class Person(Struct, frozen=True):
    """Names of a user or bot: the display name, and the name in mentions."""

    name: str = ""
    username: str = ""


class _Entry(Struct, frozen=True):
    person: Person
    until: float


class Directory:
    """Names by id. A name that could not be loaded is empty, and asked for again later.

    Ids begin with a letter for their kind: ``U`` and ``W`` users, ``B`` bots, ``C`` and ``G`` channels, ``S``
    user groups. A channel's name is its title, such as ``#general``.
    """

    def __init__(self, api: Api, clock: Callable[[], float] = monotonic) -> None:
        self._api = api
        self._clock = clock
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._missing_scopes: dict[str, float] = {}
        """Methods that need a scope that the app has not, and the time until which they are not called."""

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Load names from now on."""
        self._tasks = tasks

    def stop(self) -> None:
        """Load no more names."""
        self._tasks = None
        for task in [*self._loading.values()]:
            task.cancel()

    def person(self, user: str) -> Person:
        """Return the known names of a user or bot."""
        found = self._entries.get(user)
        if found is None:
            return Person()
        self._entries.move_to_end(user)
        return found.person

    def username(self, user: str) -> str:
        """Return a user's name in mentions; empty if unknown."""
        person = self.person(user)
        return person.username or person.name

    def title(self, chat: str) -> str:
        """Return the title of a channel, such as ``#general``; empty if unknown or a direct chat."""
        return self.person(chat).name

    def handle(self, group: str) -> str:
        """Return the name of a user group in mentions; empty if unknown."""
        return self.person(group).username

    async def load(self, ids: Iterable[str], seconds: float) -> None:
        """Load the names that are not known, waiting ``seconds`` at most. Never fails."""
        asked = [one for one in dict.fromkeys(ids) if one and one[0] in _LOADS][:_MOST_IDS]
        tasks = [task for one in asked if (task := self._task(one)) is not None]
        if tasks and seconds > 0:
            await asyncio.wait(tasks, timeout=seconds)

    def note_chats(self, rows: Iterable[Json]) -> None:
        """Note the titles of channels from a listing."""
        for row in rows:
            self._note_chat(row)

    def notice(self, event: Json) -> None:
        """Apply an event about a changed name to what is known. Malformed events are ignored."""
        kind = event.get("type")
        if kind == "user_change":
            user = _dict(event, "user")
            if _str(user, "id") in self._entries:
                self._note(_str(user, "id"), _person(user))
        elif kind in ("channel_rename", "group_rename"):
            self._note_chat(_dict(event, "channel"))
        elif kind in ("subteam_updated", "subteam_created"):
            self._note_group(_dict(event, "subteam"))

    def _task(self, one: str) -> asyncio.Task[None] | None:
        """Return the task that loads a name; None if it is known, or cannot be loaded now."""
        known = self._entries.get(one)
        if known is not None and self._clock() < known.until:
            return None
        key = "S" if one[0] == "S" else one
        task = self._loading.get(key)
        if task is None and self._tasks is not None and len(self._loading) < _MOST_LOADING:
            method, _ = _LOADS[one[0]]
            if self._clock() < self._missing_scopes.get(method, 0.0):
                return None
            task = self._loading[key] = self._tasks.create_task(self._load(one, key))
        return task

    async def _load(self, one: str, key: str) -> None:
        method, argument = _LOADS[one[0]]
        known = self.person(one)
        try:
            # Not urgent: names must not delay the calls that read or write messages.
            given: Json = {argument: one} if argument else {}
            answer = await self._api.call(method, urgent=False, **given)
            self._note(one, Person())
            self._apply(one, answer)
        except RefusedError as refused:
            if refused.error == "missing_scope":
                self._missing_scopes[method] = self._clock() + _REFUSED_SECONDS
                log.warning("names cannot be loaded; install the app again", reason=str(refused))
            else:
                log.debug("a name cannot be loaded", id=one, reason=str(refused))
            self._note(one, known, _REFUSED_SECONDS)
        except (PlacementDeferred, PlacementRefused, PlacementUncertain) as error:
            log.info("a name could not be loaded", id=one, reason=str(error))
            self._note(one, known, _FAILED_SECONDS)
        finally:
            self._loading.pop(key, None)

    def _apply(self, one: str, answer: Json) -> None:
        """Store the answer of a call; a malformed one stores no name."""
        match one[0]:
            case "U" | "W":
                self._note(one, _person(_dict(answer, "user")))
            case "B":
                name = _str(_dict(answer, "bot"), "name")
                self._note(one, Person(name))
            case "S":
                rows: object = answer.get("usergroups")
                for row in cast(list[object], rows) if isinstance(rows, list) else ():
                    if isinstance(row, dict):
                        self._note_group(cast(Json, row))
            case _:
                self._note_chat({**_dict(answer, "channel"), "id": one})

    def _note_chat(self, row: Json) -> None:
        chat, name = _str(row, "id"), _str(row, "name")
        if chat[:1] in ("C", "G"):
            # The name of a direct chat of several users is made of their names, as Slack's own "mpdm-…".
            direct = row.get("is_mpim") or name.startswith("mpdm-")
            self._note(chat, Person("" if direct or not name else f"#{name}"))

    def _note_group(self, row: Json) -> None:
        if _str(row, "id")[:1] == "S":
            self._note(_str(row, "id"), Person(_str(row, "name"), _str(row, "handle")))

    def _note(self, one: str, person: Person, seconds: float = _FRESH_SECONDS) -> None:
        self._entries[one] = _Entry(person, self._clock() + seconds)
        self._entries.move_to_end(one)
        while len(self._entries) > _MOST_ENTRIES:
            self._entries.popitem(last=False)


_LOADS = {
    "U": ("users.info", "user"),
    "W": ("users.info", "user"),
    "B": ("bots.info", "bot"),
    "C": ("conversations.info", "channel"),
    "G": ("conversations.info", "channel"),
    "S": ("usergroups.list", ""),
}
"""The method that names the ids of a kind, and its argument."""


def _person(user: Json) -> Person:
    profile = _dict(user, "profile")
    name = _str(profile, "display_name") or _str(profile, "real_name") or _str(user, "real_name")
    return Person(name[:_LONGEST], _str(user, "name")[:_LONGEST])


def _str(given: Json, key: str) -> str:
    value = given.get(key)
    return value if isinstance(value, str) else ""


def _dict(given: Json, key: str) -> Json:
    value = given.get(key)
    return cast(Json, value) if isinstance(value, dict) else {}
