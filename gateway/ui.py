"""The UI service: how a plugin talks to whoever operates the gateway."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import structlog

log = structlog.get_logger("trunkline.ui")

Level = Literal["info", "success", "warning", "error"]


class UIService(Protocol):
    """Notices and questions. Hosts without a person answer at once; never use it to approve anything."""

    def notify(self, message: str, level: Level = "info") -> None: ...

    async def confirm(self, title: str, message: str) -> bool: ...

    async def select(self, title: str, options: Sequence[str]) -> str | None: ...

    async def input(self, title: str, placeholder: str = "") -> str | None: ...

    def set_status(self, key: str, text: str) -> None: ...

    def clear_status(self, key: str) -> None: ...


class ConsoleUI:
    """The fallback without a person: notices go to the log, questions get their first answer at once."""

    def notify(self, message: str, level: Level = "info") -> None:
        """Write the notice to the log."""
        write = {"error": log.error, "warning": log.warning}.get(level, log.info)
        write(message, level=level)

    async def confirm(self, title: str, message: str) -> bool:
        """Always yes."""
        log.info(f"{title}: {message} (answered yes: nobody is asked here)")
        return True

    async def select(self, title: str, options: Sequence[str]) -> str | None:
        """The first option, if there is one."""
        return options[0] if options else None

    async def input(self, title: str, placeholder: str = "") -> str | None:
        """Nothing."""
        return None

    def set_status(self, key: str, text: str) -> None:
        """Nothing to show it on."""

    def clear_status(self, key: str) -> None:
        """Nothing to clear."""
