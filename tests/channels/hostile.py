"""Payloads that are wrong in some way: what a platform's next version, a fault or an attacker might send."""

from __future__ import annotations

import copy
from random import Random
from typing import Any

STRANGE: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1.5,
    10**30,
    2**63,
    "",
    "\0",
    "x" * 50_000,
    [],
    [None],
    {},
    {"a": {"b": [1]}},
    [[[[]]]],
)


def spoiled(payload: Any, dice: Random) -> Any:
    """A copy of a payload in which up to three places were changed, taken away or added to. It is JSON."""
    made = copy.deepcopy(payload)
    for _ in range(dice.randint(1, 3)):
        place = _somewhere(made, dice)
        if isinstance(place, dict):
            _spoil_object(place, dice)
        elif isinstance(place, list) and place:
            place[dice.randrange(len(place))] = strange(dice)
    return made


def strange(dice: Random) -> Any:
    """A value that is probably none of those expected."""
    return copy.deepcopy(dice.choice(STRANGE))


def _spoil_object(place: dict[str, Any], dice: Random) -> None:
    keys = [*place]
    match dice.randrange(4) if keys else 0:
        case 0:
            place[dice.choice(["future", "", "\0", "id", "type", "user"])] = strange(dice)
        case 1:
            del place[dice.choice(keys)]
        case _:
            place[dice.choice(keys)] = strange(dice)


def _somewhere(value: Any, dice: Random) -> Any:
    """An object or a list within a payload, mostly not the outermost."""
    inner = [one for one in _items(value) if isinstance(one, dict | list)]
    return _somewhere(dice.choice(inner), dice) if inner and dice.random() < 0.75 else value


def _items(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
