"""The common parts of the fake chat platforms: Telegram, Discord and Slack.

In: a platform's state, its methods, its schemas and its limits. Out: a server on a real socket with fault
scripts, a transcript, a web page and a control interface. Fakes and tests may import it.
"""

from __future__ import annotations

from gateway.testing.fake_platform.calls import FAULTS, Call, Fault, FaultScript, Refusal, Transcript
from gateway.testing.fake_platform.clock import Changes, Clock
from gateway.testing.fake_platform.command import announce, main, options
from gateway.testing.fake_platform.control import Control
from gateway.testing.fake_platform.limits import Patience, Window
from gateway.testing.fake_platform.schemas import Finding, Schemas
from gateway.testing.fake_platform.server import FakeServer, ServerOptions, as_json, cut

__all__ = [
    "FAULTS",
    "Call",
    "Changes",
    "Clock",
    "Control",
    "FakeServer",
    "Fault",
    "FaultScript",
    "Finding",
    "Patience",
    "Refusal",
    "Schemas",
    "ServerOptions",
    "Transcript",
    "Window",
    "announce",
    "as_json",
    "cut",
    "main",
    "options",
]
