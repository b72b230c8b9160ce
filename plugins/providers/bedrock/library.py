"""Amazon's own library, of which signing is used: an extra, loaded when it is needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from gateway import SettingsError


def botocore(module: str, provider_id: str = "bedrock") -> Any:
    """A module of botocore. Raises SettingsError if the extra is not installed."""
    try:
        return import_module(f"botocore.{module}")
    except ImportError:
        raise SettingsError(
            f"provider {provider_id!r} needs the extra bedrock: pip install 'trunkline[bedrock]'"
        ) from None
