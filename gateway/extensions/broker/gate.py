"""The gate of a confined plugin: may it use a capability now?

What the manifest does not declare is denied. What it declares can be used once it was granted: at the
installation, on the command line, or by an admin whom the gate asks in the chat.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import Any

import structlog
from msgspec import Struct

from gateway.contract.errors import AddressRefusedError, BudgetExceededError, TrunklineError
from gateway.extensions.admission.capabilities import Grant
from gateway.extensions.admission.manifest import Admitted
from gateway.extensions.broker.services import CapabilityLog, GrantService

log = structlog.get_logger("trunkline.plugins")

MOST_DENIALS, DENIALS_SECONDS = 10, 60.0
"""Denials in this time after which a plugin is stopped."""


class CapabilityDenied(TrunklineError):
    """A plugin may not use a capability; the text names it, the value, and what would allow it."""

    status = 403


class Use(Struct, frozen=True):
    """One use of a capability.

    ``grant`` is what allows it; None if the manifest does not declare it, and then ``missing`` is the line
    of the manifest to add. ``value`` is what the plugin named, such as a host, and ``action`` completes the
    sentence "plugin x wants to …". ``arguments`` are digested for the audit log. ``session`` is that of the
    turn in which the plugin works, or "". ``refused`` is why no grant can allow this use, or "".
    """

    capability: str
    value: str
    grant: Grant | None
    action: str
    missing: str = ""
    session: str = ""
    arguments: Mapping[str, Any] | Sequence[Any] = ()
    refused: str = ""


class Gate:
    """Checks and records each use of a capability by one plugin.

    ``stop`` is called with a reason when too many uses are denied.
    """

    def __init__(
        self, admitted: Admitted, grants: GrantService, audit: CapabilityLog, stop: Callable[[str], None]
    ) -> None:
        self._admitted = admitted
        self._name = admitted.manifest.name
        self._grants = grants
        self._audit = audit
        self._stop = stop
        self.paused: Callable[[str], AbstractContextManager[None]] = lambda _session: nullcontext()
        """Stops the clocks of a session's calls while an admin decides."""
        self._denials: deque[float] = deque(maxlen=MOST_DENIALS)

    def holds(self, grant: Grant) -> bool:
        """Return whether a grant was given and not revoked."""
        return grant not in self._grants.refused(self._name) and (
            grant in self._admitted.grants or grant in self._grants.given(self._name)
        )

    async def check(self, use: Use) -> None:
        """Return if the use is allowed, and record it. Raises CapabilityDenied."""
        async with self.using(use):
            pass

    @asynccontextmanager
    async def using(self, use: Use) -> AsyncGenerator[None]:
        """Enter the block if the use is allowed, and record it after the block. Raises CapabilityDenied.

        A refusal that the block raises makes it a denied use.
        """
        begun, seconds, allowed = time.perf_counter(), 0.0, True
        try:
            try:
                await self._decide(use)
            finally:
                seconds = time.perf_counter() - begun
            yield
        except CapabilityDenied as denied:
            allowed = False
            self._count_denial()
            log.warning("a plugin was denied a capability", plugin=self._name, reason=str(denied))
            raise
        except (AddressRefusedError, BudgetExceededError):
            # Not counted: these refusals do not show that a plugin tries what it may not do.
            allowed = False
            raise
        finally:
            self.record(use, seconds, allowed=allowed)

    def record(self, use: Use, seconds: float = 0.0, *, allowed: bool) -> None:
        """Write a use into the audit log, with the time that its check took."""
        manifest, digest = self._admitted.manifest, self._admitted.digest
        self._audit.record(
            (manifest.name, manifest.version, digest),
            use.capability,
            use.value,
            use.arguments,
            allowed=allowed,
            microseconds=round(seconds * 1_000_000),
        )

    async def _decide(self, use: Use) -> None:
        if use.grant is None:
            raise CapabilityDenied(
                f"{use.capability}: {use.value!r} is not declared by the plugin {self._name!r}; "
                f"its plugin.yml needs {use.missing}"
            )
        if use.refused:
            raise CapabilityDenied(f"{use.capability}: {use.refused}")
        if self.holds(use.grant):
            return
        if use.grant in self._grants.refused(self._name):
            raise CapabilityDenied(f"{self._reason(use)} was refused permanently; {self._remedy(use.grant)}")
        with self.paused(use.session):
            decision = await self._grants.ask(self._name, use.grant, use.action, use.session)
        if decision not in ("once", "always"):
            raise CapabilityDenied(f"{self._reason(use)} was not granted; {self._remedy(use.grant)}")

    def _reason(self, use: Use) -> str:
        return f"{use.capability}: {use.value!r}"

    def _remedy(self, grant: Grant) -> str:
        return f"grant it with: trunkline plugin approve {self._name} --allow '{grant}'"

    def _count_denial(self) -> None:
        now = time.monotonic()
        self._denials.append(now)
        if len(self._denials) == MOST_DENIALS and now - self._denials[0] <= DENIALS_SECONDS:
            self._denials.clear()
            self._stop(f"{MOST_DENIALS} denied capabilities within {DENIALS_SECONDS:g} s")
