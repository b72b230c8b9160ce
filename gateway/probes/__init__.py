"""Probes of model providers: one short request, and the test of a key, for the commands and the console.

In: the providers of a gateway. Out: what a request took or why it failed, with the remedy. Imported by
``gateway.cli`` and ``gateway.server``.
"""

from gateway.probes.keys import check_key
from gateway.probes.pings import MeterOf, PingResult, metered, ping

__all__ = ["MeterOf", "PingResult", "check_key", "metered", "ping"]
