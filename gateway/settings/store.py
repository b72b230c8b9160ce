"""Settings of the database, and of the nodes that share it."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from gateway.settings.section import Days, Milliseconds, Section, not_blank


class StoreSettings(Section):
    """The database."""

    url: Annotated[str, AfterValidator(not_blank)] | None = Field(
        default=None, repr=False, description="SQLAlchemy URL of the database; SQLite in data_dir if unset"
    )
    wait_ms: Milliseconds = Field(
        default=60_000,
        ge=0,
        description="Wait at the start for an unreachable or read-only database, in ms; default 60000",
    )
    keep_days: Days = Field(
        default=30, gt=0, description="Days to remember messages, to detect repeated deliveries; default 30"
    )
    trail: Literal["full", "failures", "off"] = Field(
        default="full",
        description="Messages whose path (waits, hooks, model and tool calls, placements) is stored for the "
        "question why: full (all), failures (those that failed, were refused or repeated) or off; default "
        "full",
    )
    keep_trail_days: Days = Field(
        default=30,
        gt=0,
        description="Days to keep the paths of messages, and ids of refused ones; default 30",
    )

    @property
    def kept_days(self) -> tuple[int, int]:
        """Days to keep settled messages, and their trails."""
        return self.keep_days, self.keep_trail_days


class ClusterSettings(Section):
    """Several gateways ("nodes") on one PostgreSQL database: one works, the others pass clients on to it."""

    url: str | None = Field(
        default=None,
        repr=False,
        pattern=r"^amqps?://",
        examples=["amqps://user:password@rabbit.example.org/"],
        description="Address of RabbitMQ, such as amqps://user:password@host/; ?cafile=/path at its end is "
        "the file of a private CA; no cluster if unset",
    )
    name: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        examples=["node-1"],
        description="Name of this node, which no other node may have; the name of the machine if unset",
    )
    address: str | None = Field(
        default=None,
        pattern=r"^([^\s:/@]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}$",
        examples=["10.0.0.5:8090"],
        description="Host and port at which the other nodes reach this one, such as 10.0.0.5:8090; a free "
        "port of 127.0.0.1 if unset, for nodes on one machine",
    )

    @property
    def node(self) -> str:
        """The name of this node."""
        return self.name or socket.gethostname()

    def log_folder(self, data_dir: Path) -> Path:
        """Return the folder of this process's log files, which nodes must not share."""
        return data_dir / "logs" if self.url is None else data_dir / "logs" / self.node
