"""Writes once into a chat when a conversation has spent most of its budget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trunkline_plugin import Context, Data, plugin


@plugin
def budget_alert(ctx: Context) -> Mapping[str, Any]:
    """Follow the cost of all conversations."""
    limit, share = ctx.config["max_cost"], ctx.config["share"]
    notified: set[str] = set()

    async def updated(event: Data) -> None:
        session, spent = event.session_id, event.totalCost
        if spent < limit * share or session in notified:
            return
        notified.add(session)
        text = f"This conversation has cost ${spent:,.2f}, {spent / limit:.0%} of its ${limit:,.2f}."
        # The key makes it one message for each budget, also after a restart.
        await ctx.send(session, text, f"{session} {limit * share:g}")

    return {"on": {"cost.updated": updated}}
