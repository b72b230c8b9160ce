"""The verdict of a storm: lists with one line for each violation; all must be empty."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

KINDS = ("lost", "duplicate", "orphan", "out_of_order", "wrong", "seq", "dead")


@dataclass
class Verdict:
    """The violations, by kind and by the channel that they were seen on."""

    found: dict[str, list[str]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    channels: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    channel: str = ""
    """The channel that is being checked."""

    def add(self, kind: str, what: str) -> None:
        """Note one violation."""
        self.found[kind].append(f"{self.channel}: {what}" if self.channel else what)
        self.channels.setdefault(self.channel or "gateway", Counter())[kind] += 1

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of violations by kind."""
        return {kind: len(lines) for kind, lines in self.found.items()}
