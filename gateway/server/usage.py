"""What was spent, over REST."""

from __future__ import annotations

from gateway.models import Spending
from gateway.models.report import UsageQuery, UsageReport, usage_report
from gateway.server.routes import Call, Nothing, Route


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
        return await usage_report(self._spending.ledger, self._spending.budgets.all, call.query)
