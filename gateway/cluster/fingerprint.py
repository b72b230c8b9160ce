"""The fingerprint of a node's settings, which shows where nodes differ and holds no value."""

from __future__ import annotations

import hashlib
import hmac
import json
from contextlib import suppress

from gateway.extensions.admission.lock import LOCK
from gateway.settings import Settings
from gateway.settings.entries import KeyPath

Fingerprint = dict[str, str]
"""A keyed hash for each setting that was written, by its key in TOML notation."""

_OF_ONE_NODE: frozenset[KeyPath] = frozenset(
    {("cluster", "name"), ("cluster", "address"), ("server", "host"), ("server", "port"), ("data_dir",)}
)
_DIGITS = 16


def fingerprint(settings: Settings, key: str) -> Fingerprint:
    """Return the fingerprint of settings, and of the approved plugins in the lock file beside them.

    ``key`` is a secret of the cluster: without it, a short value could be guessed from its hash. Settings
    that each node has for itself are left out.
    """
    found = {
        entry.key: json.dumps(entry.value, sort_keys=True, default=str)
        for entry in settings.entries
        if entry.path not in _OF_ONE_NODE and entry.path[0] != "log"
    }
    lock = settings.file.parent / LOCK
    with suppress(FileNotFoundError):
        found[LOCK] = lock.read_text(encoding="utf-8", errors="replace")
    return {name: _hash(key, text) for name, text in found.items()}


def differences(one: Fingerprint, other: Fingerprint) -> list[str]:
    """Return the keys of the settings that differ, sorted."""
    return sorted(name for name in {*one, *other} if one.get(name) != other.get(name))


def _hash(key: str, text: str) -> str:
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()[:_DIGITS]
