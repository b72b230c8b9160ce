"""The built-in tools: the time, a calculator, and a slow counter that shows its progress."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated
from zoneinfo import ZoneInfo

from pydantic import Field

from gateway import DisplayHints, Tool, ToolContext, ToolError, tool_from

Number = int | float

EXPRESSION_LIMIT = 200
"""Most characters of an expression."""
BITS_LIMIT = 4096
"""Most bits of an integer, intermediate results included."""
LONGEST_COUNT_MS = 600_000
"""The timeout of ``slow_count`` in milliseconds: more than its largest arguments need."""

_BINARY: Mapping[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.Div: lambda left, right: left / right,
    ast.FloorDiv: lambda left, right: left // right,
    ast.Mod: lambda left, right: left % right,
}
_UNARY: Mapping[type[ast.unaryop], Callable[[Number], Number]] = {
    ast.UAdd: lambda number: +number,
    ast.USub: lambda number: -number,
}


async def utc_time(
    zone: Annotated[str, Field(description="IANA time zone, such as Europe/Oslo")] = "UTC",
) -> str:
    """Tell the current date and time, in UTC or in another time zone."""
    try:
        now = datetime.now(ZoneInfo(zone))
    except (KeyError, ValueError, OSError):
        raise ToolError(f"unknown time zone {zone!r}; use a name such as Europe/Oslo") from None
    return f"{now:%A, %Y-%m-%d %H:%M:%S} {zone} (UTC{now:%z})"


async def calculator(
    expression: Annotated[str, Field(description="Numbers with + - * / // % ** and parentheses")],
) -> str:
    """Work out an arithmetic expression exactly."""
    if len(expression) > EXPRESSION_LIMIT:
        raise ToolError(f"an expression may have at most {EXPRESSION_LIMIT} characters")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
        value = _value(tree.body)
    except (SyntaxError, ValueError):
        raise ToolError(f"{expression!r} is not an arithmetic expression") from None
    except ZeroDivisionError:
        raise ToolError("division by zero") from None
    except (OverflowError, MemoryError, RecursionError):
        raise ToolError("the numbers get too large") from None
    return str(value)


async def slow_count(
    context: ToolContext,
    n: Annotated[int, Field(ge=1, le=100, description="How far to count")] = 5,
    delay_ms: Annotated[int, Field(ge=0, le=5000, description="Milliseconds before each number")] = 500,
) -> str:
    """Count to n slowly, and show each number as it comes."""
    for number in range(1, n + 1):
        await asyncio.sleep(delay_ms / 1000)
        context.progress(f"{number} of {n}\n")
    return f"Counted to {n}."


def tools() -> list[Tool]:
    """Return the built-in tools, all read-only and idempotent."""
    return [
        tool_from(
            utc_time,
            display=DisplayHints(verb="looking at the clock", fields={"zone": "zone"}),
            idempotent=True,
            read_only=True,
        ),
        tool_from(
            calculator,
            display=DisplayHints(verb="calculating", fields={"expression": "expression"}),
            match_key=lambda arguments: arguments["expression"],
            idempotent=True,
            read_only=True,
        ),
        tool_from(
            slow_count,
            display=DisplayHints(verb="counting", fields={"count": "n"}),
            idempotent=True,
            read_only=True,
            timeout_ms=LONGEST_COUNT_MS,
        ),
    ]


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return _bounded(number)
        case ast.UnaryOp(op=sign, operand=operand) if type(sign) in _UNARY:
            return _UNARY[type(sign)](_value(operand))
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left), _value(right))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _BINARY:
            return _bounded(_BINARY[type(sign)](_value(left), _value(right)))
        case _:
            raise ValueError("not arithmetic")


def _power(number: Number, exponent: Number) -> Number:
    if isinstance(number, int) and isinstance(exponent, int) and exponent >= 0:
        if (number.bit_length() - 1) * exponent > BITS_LIMIT:
            raise OverflowError
        return _bounded(number**exponent)
    result = float(number) ** exponent
    if isinstance(result, complex):
        raise ToolError("the result is not a real number")
    return result


def _bounded(number: Number) -> Number:
    if isinstance(number, int) and number.bit_length() > BITS_LIMIT:
        raise OverflowError
    return number
