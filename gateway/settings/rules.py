"""Who may talk on a channel: the rules that are the same for every platform."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, WithJsonSchema

T = TypeVar("T")


def _as_text(value: object) -> object:
    """An id as text: many platforms' are numbers."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _checked(value: str) -> str:
    if not value or value == "*" or value.startswith("@") or any(c.isspace() for c in value):
        raise ValueError('must hold ids, like "123456789", as the platform knows them: names change hands')
    return value


Id = Annotated[
    str,
    BeforeValidator(_as_text),
    AfterValidator(_checked),
    WithJsonSchema({"type": ["string", "integer"]}),
]
"""Who or what somebody is on a platform: never a name."""

Everybody = Literal["*"]


class ChannelRules(BaseModel):
    """Who may talk on a channel. Closed unless it is opened: whoever is not named or paired is a stranger."""

    allow: Everybody | tuple[Id, ...] = Field(
        default=(), description="Ids of those who may talk to it; * for everybody; others have to be paired"
    )
    admins: tuple[Id, ...] = Field(default=(), description="Ids of those who may also use what is for admins")


class AccountRules(BaseModel):
    """The rules of one account of a channel; what is not said is as on the channel."""

    allow: Everybody | tuple[Id, ...] | None = Field(default=None, description="In place of the channel's")
    admins: tuple[Id, ...] | None = Field(default=None, description="In place of the channel's")

    def instead(self, rules: ChannelRules) -> ChannelRules:
        """The channel's rules, with those of this account in their place."""
        names = ChannelRules.model_fields
        shared = {name: getattr(rules, name) for name in names if name in rules.model_fields_set}
        own = {name: value for name in names if (value := getattr(self, name)) is not None}
        return ChannelRules(**{**shared, **own})


def of_known_roles(permissions: dict[str, T]) -> dict[str, T]:
    """The permissions, if each that is a role's is that of a role there is. Raises ValueError."""
    for name in permissions:
        _, at, role = name.partition("@")
        if at and role not in ("admin", "user"):
            raise ValueError(f"has a rule for {name!r}: what stands behind an @ is admin or user")
    return permissions
