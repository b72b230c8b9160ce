"""The command that runs a fake platform alone: its options, and what it prints."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence

Serve = Callable[[], Coroutine[None, None, None]]


def options(description: str, platform: str = "") -> argparse.ArgumentParser:
    """Return a parser with the options that all fake platforms have."""
    parser = argparse.ArgumentParser(f"trunkline dev fake {platform}".strip(), description=description)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=0, help="port; 0 takes any free port (default: 0)")
    parser.add_argument(
        "--faults", type=float, default=0, help="share of calls that fail, 0 to 1 (default: 0)"
    )
    parser.add_argument(
        "--repeats", type=float, default=0, help="share of events delivered twice, 0 to 1 (default: 0)"
    )
    parser.add_argument("--seed", type=int, default=0, help="selects the calls that fail (default: 0)")
    return parser


async def announce(url: str, channel: str, settings: Mapping[str, str], facts: Sequence[str] = ()) -> None:
    """Print the address, the facts and the settings that connect a gateway; then wait until cancelled."""
    sys.stdout.write("\n".join([url, *facts, channel_settings(channel, settings)]))
    sys.stdout.flush()
    await asyncio.Event().wait()


def channel_settings(channel: str, settings: Mapping[str, str]) -> str:
    """Return a ``[channels.<channel>]`` table as TOML, under a comment that says where it belongs."""
    if not settings:
        return ""
    # A JSON string of ASCII characters is a TOML basic string, too.
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    head = ["", "# Paste into config/trunkline.toml, then start the gateway:", f"[channels.{channel}]"]
    return "\n".join([*head, *lines, "", ""])


def main(serve: Serve) -> None:
    """Run a fake platform until it is interrupted."""
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve())
