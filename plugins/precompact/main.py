"""Runs the PreCompact hooks of the settings: commands that are called before a conversation is summarized."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Mapping
from typing import Any

from trunkline_plugin import Context, Data, plugin

SECONDS = 10.0
"""The limit of a hook that sets none."""


@plugin
def precompact(ctx: Context) -> Mapping[str, Any]:
    """Add what the hooks write to the instructions of the summary."""

    async def compacting(event: Data) -> Mapping[str, str] | None:
        payload = {
            "trigger": event.trigger,
            "session_id": event.session_id,
            "custom_instructions": event.instructions,
        }
        hooks = [
            hook for hook in ctx.config["hooks"] if hook.get("matcher", "auto") in ("auto", event.trigger)
        ]
        # At the same time, because the summary does not wait for longer than 30 s.
        outputs = await asyncio.gather(*(run(hook, json.dumps(payload)) for hook in hooks))
        texts = [text for text in (event.instructions, *outputs) if text.strip()]
        return {"instructions": "\n\n".join(texts)} if any(outputs) else None

    async def run(hook: Mapping[str, Any], payload: str) -> str:
        """Return the output of a hook. One that fails is reported, and the others count."""
        command, timeout = hook["command"], hook.get("timeout", SECONDS)
        try:
            program, *arguments = shlex.split(command)
            done = await ctx.exec(program, arguments, input=payload, timeout=timeout)
        except Exception as error:  # noqa: BLE001 - the summary is made after any failure
            ctx.log.warning(f"the PreCompact hook {command!r} failed: {error}")
            return ""
        if done.exit_code:
            said = (done.stderr or done.stdout).strip()[:1000]
            ctx.log.warning(f"the PreCompact hook {command!r} ended with status {done.exit_code}: {said}")
            return ""
        return done.stdout.strip()

    return {"on": {"session.compacting": compacting}}
