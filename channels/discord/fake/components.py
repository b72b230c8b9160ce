"""Buttons and the like on messages: what the platform asks of them beyond their shape."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from channels.discord.fake.errors import invalid, unmodelled
from channels.discord.fake.nouns import Json

ROW, BUTTON, SECTION = 1, 2, 9
SELECTS: Final = (3, 5, 6, 7, 8)
LINK, PREMIUM = 5, 6
_MEDIA: Final = (11, 12, 13)
_FILLED_IN: Final[Mapping[int, Json]] = {
    **{kind: {"min_values": 1, "max_values": 1} for kind in SELECTS},
    14: {"divider": True, "spacing": 1},
    17: {"accent_color": None, "spoiler": False},
}
"""What the platform adds to a component that does not say it."""
_MOST_ROWS, _MOST_COMPONENTS = 5, 40


def check(components: Sequence[Json], *, second_version: bool) -> tuple[Json, ...]:
    """The components as the platform keeps them, each with an id. Raises ApiError."""
    if not second_version:
        _check_rows(components)
    everything = list(walk(components))
    if len(everything) > _MOST_COMPONENTS:
        raise invalid(
            "components",
            "COMPONENT_MAX_TOTAL_COMPONENTS_EXCEEDED",
            f"The total number of components cannot exceed {_MOST_COMPONENTS}",
        )
    _check_ids(everything)
    for path, component in everything:
        if component["type"] in _MEDIA:
            raise unmodelled("components with media")
        if component["type"] == BUTTON:
            _check_button(path, component)
    numbers = itertools.count(1)
    return tuple(_numbered(component, numbers) for component in components)


def walk(components: Sequence[Json], path: str = "components") -> Iterator[tuple[str, Json]]:
    """Every component with its dotted path, also those inside others."""
    for index, component in enumerate(components):
        at = f"{path}.{index}"
        yield at, component
        yield from walk(component.get("components") or (), f"{at}.components")
        if component.get("accessory"):
            yield f"{at}.accessory", component["accessory"]


def find(components: Sequence[Json], custom_id: str) -> Json:
    """The component that a person can press or choose from. Raises LookupError."""
    for _, component in walk(components):
        if component.get("custom_id") == custom_id and not component.get("disabled"):
            return component
    raise LookupError(f"nothing to press with custom_id {custom_id!r}")


def _check_rows(components: Sequence[Json]) -> None:
    if len(components) > _MOST_ROWS:
        raise invalid("components", "BASE_TYPE_BAD_LENGTH", "Must be between 1 and 5 in length.")
    for index, row in enumerate(components):
        if row["type"] != ROW:
            message = 'Value of field "type" must be one of (1,).'
            raise invalid(f"components.{index}.type", "UNION_TYPE_CHOICES", message)
        inside = row["components"]
        if len(inside) > 1 and any(component["type"] in SELECTS for component in inside):
            message = "The specified component exceeds the maximum width"
            raise invalid(f"components.{index}.components", "COMPONENT_LAYOUT_WIDTH_EXCEEDED", message)


def _check_ids(everything: Sequence[tuple[str, Json]]) -> None:
    seen: set[str] = set()
    for path, component in everything:
        name = component.get("custom_id")
        if name is not None and name in seen:
            message = "Component custom id cannot be duplicated"
            raise invalid(f"{path}.custom_id", "COMPONENT_CUSTOM_ID_DUPLICATED", message)
        seen.add(name or "")


def _check_button(path: str, button: Mapping[str, Any]) -> None:
    link = button["style"] == LINK
    if link and not button.get("url"):
        raise invalid(f"{path}.url", "BASE_TYPE_REQUIRED", "This field is required")
    if link and button.get("custom_id"):
        message = "A custom id and url cannot both be specified"
        raise invalid(path, "BUTTON_COMPONENT_CUSTOM_ID_URL_MUTUALLY_EXCLUSIVE", message)
    if button["style"] < LINK and not button.get("custom_id"):
        message = "A custom id required"
        raise invalid(f"{path}.custom_id", "BUTTON_COMPONENT_CUSTOM_ID_REQUIRED", message)
    if button["style"] != PREMIUM and not (button.get("label") or button.get("emoji")):
        raise invalid(path, "BUTTON_COMPONENT_INVALID_EMOJI_OR_LABEL", "A label or an emoji is required")


def _numbered(component: Json, numbers: Iterator[int]) -> Json:
    kept = {**_FILLED_IN.get(component["type"], {})}
    kept |= {key: value for key, value in component.items() if value is not None}
    kept["id"] = kept.get("id") or next(numbers)
    if "components" in kept:
        kept["components"] = [_numbered(inner, numbers) for inner in kept["components"]]
    if "accessory" in kept:
        kept["accessory"] = _numbered(kept["accessory"], numbers)
    return kept
