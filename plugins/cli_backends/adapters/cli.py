"""The description of a coding program, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from plugins.cli_backends.adapters.protocol import Adapter, ProgramRequest
from plugins.programs.catalog import Program


def find_no_autorun(folder: str, home: str) -> str:
    """Return nothing: the program runs no code of the folder at its start."""
    return ""


def no_extra_variables(model: str, environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return no variables."""
    return {}


class Login(Struct, frozen=True, kw_only=True):
    """A login of the program's own.

    ``method`` is its id in the Agent Client Protocol, for machines with a browser. Without a browser the
    program runs at the terminal with ``variables``, and ``steps`` are what the user does there. ``advice``
    follows the error if the vendor refuses the login.
    """

    method: str
    account: str
    steps: str
    variables: Mapping[str, str]
    advice: str


class Cli(Struct, frozen=True, kw_only=True):
    """A coding program as a backend.

    The variables ``fixed`` are always set, and ``extra_variables`` computes more from the model and the
    environment. A stderr line that contains ``lost_session`` means that the program cannot resume its
    session. ``find_autorun`` gets a folder and the home folder; it reads files and names what the program
    would run at its start without approval, or returns "".
    """

    name: str
    program: Program
    adapter: Callable[[ProgramRequest], Adapter]
    fixed: Mapping[str, str] = {}
    extra_variables: Callable[[str, Mapping[str, str]], Mapping[str, str]] = no_extra_variables
    lost_session: str = ""
    find_autorun: Callable[[str, str], str] = find_no_autorun
    stand_in: str = ""
    """The provider of the same vendor's API. It answers if the program fails and no fallback is configured,
    and the program uses the key that ``trunkline auth login`` stored for it.
    """
    login: Login | None = None
    """The login that ``trunkline auth login`` can run, if any."""
