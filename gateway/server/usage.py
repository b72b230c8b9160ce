"""What was spent, over REST."""

from __future__ import annotations

from gateway.server.routes import Call, Nothing, Route
from gateway.spending import Spending
from gateway.spending.report import UsageQuery, UsageReport, report


class UsageRoutes:
    """The route ``/api/usage``."""

    def __init__(self, spending: Spending) -> None:
        self._spending = spending

    def routes(self) -> list[Route]:
        """The one there is."""
        return [
            Route(
                method="GET",
                path="/api/usage",
                name="readUsage",
                summary="What calls of models took and cost, and how the budgets stand.",
                call=self._read,
                query=UsageQuery,
                answer=UsageReport,
            )
        ]

    async def _read(self, call: Call[Nothing, UsageQuery, Nothing, None]) -> UsageReport:
        return await report(self._spending.ledger, self._spending.budgets.all, call.query)
