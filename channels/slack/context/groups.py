"""Members of the user groups that access rules name, confirmed in the last five minutes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from time import monotonic
from typing import cast

import structlog
from msgspec import Struct

from channels.slack.api import Api, Json, RefusedError
from gateway.channel import PlacementDeferred, PlacementRefused, PlacementUncertain

log = structlog.get_logger("trunkline.slack")

PREFIX = "usergroup:"
_VALID_SECONDS = 300.0
"""Seconds for which a confirmed membership counts."""
_REFRESH_SECONDS = 240.0
"""Seconds after which members are read again, well before their confirmation ends."""
_RETRY_SECONDS = 10.0
_LOOK_SECONDS = 5.0
"""Seconds between checks for groups that were added to the rules."""


class _Members(Struct, frozen=True):
    users: frozenset[str]
    confirmed: float


class UserGroups:
    """Members of user groups of one workspace, by the groups' ids.

    ``named`` returns the ids of the groups that the rules name; no other group is read. A membership that is
    not confirmed does not count: after failed or refused calls, and for unknown groups.
    """

    def __init__(
        self, api: Api, named: Callable[[], Collection[str]], clock: Callable[[], float] = monotonic
    ) -> None:
        self._api = api
        self._named = named
        self._clock = clock
        self._members: dict[str, _Members] = {}
        self._changes: dict[str, int] = {}
        """Numbers of reported changes, by group; a list that was asked for before a change does not count."""
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._problems: dict[str, str] = {}
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self, tasks: asyncio.TaskGroup) -> None:
        """Keep the members of all named groups confirmed until cancelled."""
        self._tasks = tasks
        try:
            while True:
                self._members = {one: it for one, it in self._members.items() if one in self._named()}
                failing = await self._read(self._due(_REFRESH_SECONDS))
                await asyncio.sleep(_RETRY_SECONDS if failing else _LOOK_SECONDS)
        finally:
            self._tasks = None
            for task in [*self._reading.values()]:
                task.cancel()

    def of(self, user: str) -> frozenset[str]:
        """Return the ids of the named groups in which a user is a confirmed member."""
        since = self._clock() - _VALID_SECONDS
        return frozenset(
            group for group, it in self._members.items() if it.confirmed > since and user in it.users
        )

    async def refresh(self) -> None:
        """Read the named groups whose members are not confirmed. Raises PlacementDeferred if one fails."""
        failing = await self._read(self._due(_REFRESH_SECONDS))
        if failing:
            raise PlacementDeferred(f"user group {failing[0]}: {self._problems.get(failing[0], 'not read')}")

    def notice(self, event: Json) -> None:
        """Apply an event about a user group: removed members stop to count at once."""
        subteam: object = event.get("subteam")
        found = cast(Json, subteam).get("id") if isinstance(subteam, dict) else event.get("subteam_id")
        if not isinstance(found, str) or found not in self._named():
            return
        removed: object = event.get("removed_users")
        gone = {str(one) for one in cast(list[object], removed)} if isinstance(removed, list) else set[str]()
        self._changes[found] = self._changes.get(found, 0) + 1
        known = self._members.get(found)
        if known is not None:
            self._members[found] = _Members(known.users - gone, known.confirmed)
        if self._tasks is not None:
            self._start(found, self._tasks)

    def _due(self, age: float) -> list[str]:
        since = self._clock() - age
        return [
            one
            for one in self._named()
            if (known := self._members.get(one)) is None or known.confirmed < since
        ]

    async def _read(self, groups: Collection[str]) -> list[str]:
        """Read groups, each by one call at a time. Returns those that could not be read."""
        if self._tasks is None:
            return list(groups)
        before = self._clock()
        tasks = [self._reading.get(one) or self._start(one, self._tasks) for one in groups]
        if tasks:
            await asyncio.wait(tasks)
        return [
            one
            for one in groups
            if (known := self._members.get(one)) is None or known.confirmed < before - _REFRESH_SECONDS
        ]

    def _start(self, group: str, tasks: asyncio.TaskGroup) -> asyncio.Task[None]:
        task = self._reading[group] = tasks.create_task(self._read_group(group))
        return task

    async def _read_group(self, group: str) -> None:
        begun, changes = self._clock(), self._changes.get(group, 0)
        try:
            answer = await self._api.call("usergroups.users.list", usergroup=group)
            users: object = answer.get("users")
            if not isinstance(users, list):
                raise PlacementUncertain("usergroups.users.list: the answer has no users")
            if changes == self._changes.get(group, 0):
                found = frozenset(str(one) for one in cast(list[object], users))
                self._members[group] = _Members(found, begun)
                self._problems.pop(group, None)
        except RefusedError as refused:
            self._members.pop(group, None)
            self._report(group, str(refused))
        except (PlacementDeferred, PlacementRefused, PlacementUncertain) as error:
            self._report(group, str(error))
        finally:
            if self._reading.get(group) is asyncio.current_task():
                del self._reading[group]

    def _report(self, group: str, problem: str) -> None:
        if self._problems.get(group) != problem:
            log.warning("members of a user group cannot be read", group=group, reason=problem)
        self._problems[group] = problem
