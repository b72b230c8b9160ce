"""The broker: what a confined plugin may do outside of its process, checked by the gateway for each call.

In: the calls of a plugin's process, its manifest and its grants. Out: results, or CapabilityDenied. What it
needs of higher packages comes as protocols of ``gateway.contract.services``.
"""

from gateway.extensions.broker.broker import Broker, BrokerServices
from gateway.extensions.broker.gate import CapabilityDenied, Gate, Use
from gateway.extensions.process.frames import Reply

__all__ = ["Broker", "BrokerServices", "CapabilityDenied", "Gate", "Reply", "Use"]
