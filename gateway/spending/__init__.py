"""Spending: what calls of models cost, and how much they may."""

from gateway.spending.budgets import Account, Budget, Budgets
from gateway.spending.estimate import size
from gateway.spending.ledger import Caller, Dimension, Ledger, Row
from gateway.spending.meter import Meter, Spent
from gateway.spending.money import dollars, shown
from gateway.spending.spending import Spending

__all__ = [
    "Account",
    "Budget",
    "Budgets",
    "Caller",
    "Dimension",
    "Ledger",
    "Meter",
    "Row",
    "Spending",
    "Spent",
    "dollars",
    "shown",
    "size",
]
