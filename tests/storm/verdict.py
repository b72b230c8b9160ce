"""What a storm is run_checks by: each list holds one line for every violation, and has to be empty."""

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
    """What is being looked at."""

    def add(self, kind: str, what: str) -> None:
        """Note one violation."""
        self.found[kind].append(f"{self.channel}: {what}" if self.channel else what)
        self.channels.setdefault(self.channel or "gateway", Counter())[kind] += 1

    @property
    def counts(self) -> dict[str, int]:
        """How many of each kind."""
        return {kind: len(lines) for kind, lines in self.found.items()}
