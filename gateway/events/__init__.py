"""The types of the event bus, for plugins: what to subscribe to, and the base of events of your own.

In: the contract. Out: these names; the bus itself is ``gateway.events.bus``. Plugins import this module;
the session, access and extensions packages and everything above them import the bus.
"""

from gateway.contract.events import BusEvent, SubAgentEvent
from gateway.events.types import (
    AccessRevoked,
    AgentProgress,
    ChannelHealth,
    ContributionsChanged,
    Disposed,
    FeedbackGiven,
    FileDeleted,
    FileModified,
    GatewayReady,
    ModelChanged,
    PluginRegistered,
    PluginUnregistered,
    SessionCompacted,
    SessionCreated,
    SessionDeleted,
    SessionTitled,
    TranscriptChanged,
    TurnFinished,
    TurnStarted,
)

__all__ = [
    "AccessRevoked",
    "AgentProgress",
    "BusEvent",
    "ChannelHealth",
    "ContributionsChanged",
    "Disposed",
    "FeedbackGiven",
    "FileDeleted",
    "FileModified",
    "GatewayReady",
    "ModelChanged",
    "PluginRegistered",
    "PluginUnregistered",
    "SessionCompacted",
    "SessionCreated",
    "SessionDeleted",
    "SessionTitled",
    "SubAgentEvent",
    "TranscriptChanged",
    "TurnFinished",
    "TurnStarted",
]
