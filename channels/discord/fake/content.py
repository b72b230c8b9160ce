"""Rules of message content: components, and the mentions that ping users."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from channels.discord.fake.calls import invalid, unmodelled
from channels.discord.fake.state import Json, Mentions

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


_USER: Final = re.compile(r"<@!?(\d+)>")
_ROLE: Final = re.compile(r"<@&(\d+)>")
_EVERYONE: Final = re.compile(r"@(everyone|here)")
_TEXT_DISPLAY: Final = 10


def mentioned(text: str) -> Mentions:
    """All that a text mentions."""
    return Mentions(
        tuple(dict.fromkeys(int(user) for user in _USER.findall(text))),
        tuple(dict.fromkeys(int(role) for role in _ROLE.findall(text))),
        _EVERYONE.search(text) is not None,
    )


def pinged(text: str, allowed: Mapping[str, Any] | None) -> Mentions:
    """Return the mentions that ping. Without ``allowed_mentions`` all do."""
    found = mentioned(text)
    if allowed is None:
        return found
    parse: Sequence[str] = allowed.get("parse") or ()
    users = [int(user) for user in allowed.get("users") or ()]
    roles = [int(role) for role in allowed.get("roles") or ()]
    return Mentions(
        tuple(user for user in found.users if "users" in parse or user in users),
        tuple(role for role in found.roles if "roles" in parse or role in roles),
        found.everyone and "everyone" in parse,
    )


def check_allowed(allowed: Mapping[str, Any] | None) -> None:
    """Raises ApiError when ``allowed_mentions`` contradicts itself."""
    for kind in ("users", "roles"):
        given = (allowed or {}).get(kind)
        if given and kind in ((allowed or {}).get("parse") or ()):
            message = f'parse:["{kind}"] and {kind}: [ids...] are mutually exclusive.'
            raise invalid("allowed_mentions", "MESSAGE_ALLOWED_MENTIONS_PARSE_EXCLUSIVE", message)


def replied_user_pinged(allowed: Mapping[str, Any] | None) -> bool:
    """Return whether an answer pings the person that it answers."""
    return True if allowed is None else bool(allowed.get("replied_user"))


def shown_text(content: str, components: Sequence[Json]) -> str:
    """All text of a message in which mentions count: its content, and components that show text."""
    return "\n".join([content, *_texts(components)])


def _texts(components: Sequence[Json]) -> Iterator[str]:
    for component in components:
        if component.get("type") == _TEXT_DISPLAY:
            yield component.get("content", "")
        yield from _texts(component.get("components") or ())
