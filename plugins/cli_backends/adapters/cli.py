"""What sets one coding program apart from the others, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from msgspec import Struct

from plugins.cli_backends.adapters.protocol import Order, Talk


class SpokenTo(Talk, Protocol):
    """A talk that also knows how its program is called."""

    def arguments(self) -> list[str]:
        """The arguments, without the program and without those of the settings, which come last."""
        ...


def no_objection(folder: str, home: str) -> str:
    """Any folder will do."""
    return ""


def no_more_variables(model: str, environment: Mapping[str, str]) -> Mapping[str, str]:
    """Nothing depends on the model."""
    return {}


class Login(Struct, frozen=True, kw_only=True):
    """A login of the program's own, which a person goes through.

    ``method`` is its name in the Agent Client Protocol, for machines with a browser. Without one the program
    runs at the terminal with ``variables``, and ``steps`` tells the person what to do there. ``advice`` tells
    what to do when the vendor refuses the login.
    """

    method: str
    account: str
    steps: str
    variables: Mapping[str, str]
    advice: str


class Cli(Struct, frozen=True, kw_only=True):
    """A program.

    ``key`` and ``url`` are the variables that hold its credential and the address of its model service;
    ``variables`` are all that it may see of the gateway's environment besides the usual; ``fixed`` are set
    always, and ``adjusted`` makes more of them from the model and the environment so far. A line of stderr
    with ``lost_session`` means that a session cannot be resumed. ``objection`` gets a folder and the home
    folder, and says what there would run unasked if the program were started; it reads files.
    """

    name: str
    title: str
    binary: str
    install: str
    key: str
    variables: tuple[str, ...]
    url: str
    talk: Callable[[Order], SpokenTo]
    fixed: Mapping[str, str] = {}
    adjusted: Callable[[str, Mapping[str, str]], Mapping[str, str]] = no_more_variables
    lost_session: str = ""
    objection: Callable[[str, str], str] = no_objection
    stand_in: str = ""
    """The provider of the same vendor's API. It answers in the program's place where no fallback is
    configured, and the program uses the key that ``trunkline auth login`` kept for it."""
    login: Login | None = None
    """The login that ``trunkline auth login`` can run."""
