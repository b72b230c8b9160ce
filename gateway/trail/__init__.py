"""The trail: the durable path of each accepted message, step by step, to explain why it was answered or not.

Recorders of running messages turn steps into rows that are committed with the writes that happen anyway;
``read`` returns the path. The session, access, models and pipeline packages record; ``why`` and the server
read. It imports the contract and the store.
"""

from gateway.trail.path import Path, read, read_path
from gateway.trail.recorder import NO_TRAIL, Trail, TrailMode, begin_trail
from gateway.trail.steps import Kind, State, Step, pack, unpack

__all__ = [
    "NO_TRAIL",
    "Kind",
    "Path",
    "State",
    "Step",
    "Trail",
    "TrailMode",
    "begin_trail",
    "pack",
    "read",
    "read_path",
    "unpack",
]
