"""Questions to users: stored before they are shown, answered once, and delivered to their owners.

In: questions of turns, plugins and the gateway, pressed buttons and typed answers. Out: answers, each
committed before it is acknowledged. Approvals and the other packages above import it.
"""

from gateway.access.questions.held import ADD, SETTLE, Held
from gateway.access.questions.questions import SERVER, Claim, Questions

__all__ = ["ADD", "SERVER", "SETTLE", "Claim", "Held", "Questions"]
