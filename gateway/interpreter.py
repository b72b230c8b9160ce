"""Settings of the interpreter for a process that does nothing but serve."""

from __future__ import annotations

import gc
import sys

_SWITCH_SECONDS = 0.0005
_YOUNG_OBJECTS = 50_000


def share_promptly() -> None:
    """Let the store's thread have its turn soon, however busy the event loop is."""
    sys.setswitchinterval(_SWITCH_SECONDS)


def settle_garbage() -> None:
    """Keep what was loaded at start out of the collector's way, and let it look less often.

    Conversations are long-lived and hold no cycles; looking through them every 700 allocations costs a
    fifth of a turn.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, 20, 50)
