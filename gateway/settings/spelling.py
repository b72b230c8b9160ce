"""How keys are spelled: which exist, camelCase for snake_case, and the nearest right one for a wrong one."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from msgspec import Struct
from pydantic import BaseModel, SecretStr

from gateway.settings.entries import KeyPath, dotted
from gateway.settings.masking import sounds_secret

ANY_NAME = "<name>"
"""Stands for a name that the person chooses, in the list of known keys."""


class Spelled(Struct, frozen=True):
    """A key path in the one spelling we use.

    ``wrong`` is the index of the first part that does not exist. ``typed`` means that the type is ours to
    say. ``secret`` is judged by type and by name.
    """

    path: KeyPath
    wrong: int | None = None
    typed: bool = False
    secret: bool = False


def spelled(model: type[BaseModel], path: KeyPath, *, table: bool = False) -> Spelled:
    """Find a key path in a model, taking camelCase where the model has snake_case.

    ``table`` says that an (empty) table stands there.
    """
    at: Any = model
    right: list[str] = []
    for index, key in enumerate(path):
        if not _is_model(at):
            at = _value_type(at)
            right.append(key)
            continue
        name = field_name(at, key)
        if name is None and not _takes_more(at, table=table or len(path) > index + 1):
            return Spelled((*right, *path[index:]), wrong=index)
        right.append(name or key)
        at = at.model_fields[name].annotation if name else None
    secret = _is_secret(at) or sounds_secret(right[-1])
    return Spelled(tuple(right), typed=at is not None and at is not Any, secret=secret)


def field_name(model: type[BaseModel], key: str) -> str | None:
    """The field that a key means, in either spelling."""
    if key in model.model_fields:
        return key
    if "_" in key or not key[:1].islower() or key.islower():
        return None
    return next((name for name in model.model_fields if name.replace("_", "") == key.lower()), None)


def known_keys(model: type[BaseModel], prefix: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield every key that a model has, tables left out; a name one may choose reads ``<name>``."""
    for name, field in model.model_fields.items():
        at: Any = field.annotation
        path = (*prefix, name)
        while not _is_model(at) and _value_type(at) is not None:
            at, path = _value_type(at), (*path, ANY_NAME)
        if _is_model(at):
            yield from known_keys(at, path)
        else:
            yield path


def suggestion(model: type[BaseModel], path: KeyPath, wrong: int, under: str = "") -> str:
    """Say which key was probably meant: one beside it, the same name elsewhere, or any that exists here."""
    here = _model_at(model, path[:wrong])
    names = list(here.model_fields)
    near = get_close_matches(path[wrong].lower(), names, n=1)
    if near:
        return f"did you mean {under}{dotted((*path[:wrong], near[0]))}?"
    elsewhere = [known for known in known_keys(model) if known[-1] == path[-1]]
    if elsewhere:
        return f"did you mean {under}{dotted(elsewhere[0])}?"
    return f"the keys here are {', '.join(names)}" if names else "there are none here"


def _model_at(model: type[BaseModel], path: KeyPath) -> type[BaseModel]:
    at: Any = model
    for key in path:
        at = at.model_fields[key].annotation if _is_model(at) else _value_type(at)
    return at


def _is_model(annotation: Any) -> typing.TypeGuard[type[BaseModel]]:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _value_type(annotation: Any) -> Any:
    """The type of a mapping's values, or None when the annotation is no mapping of ours."""
    origin = typing.get_origin(annotation)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return typing.get_args(annotation)[1]
    return None


def _takes_more(model: type[BaseModel], *, table: bool) -> bool:
    """Whether a model takes keys of others' choosing; where those are tables, a single value is a mistake."""
    if model.model_config.get("extra") != "allow":
        return False
    return table or "__pydantic_extra__" not in model.__annotations__


def _is_secret(annotation: Any) -> bool:
    return annotation is SecretStr or SecretStr in typing.get_args(annotation)
