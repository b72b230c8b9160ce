"""The errors of HTTP alone: names, explanations and tree, as for the errors of the contract."""

from __future__ import annotations

import inspect
import re

import pytest

from gateway.contract.errors import TrunklineError
from gateway.server import errors

KINDS = [
    kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_is_named_after_its_class_and_explained(kind: type[TrunklineError]) -> None:
    assert kind("it is so").name == kind.__name__
    assert kind.__name__.endswith("Error")
    assert inspect.getdoc(kind) != inspect.getdoc(kind.__mro__[1])
    assert 400 <= kind.status < 500


def test_the_tree_that_is_drawn_is_the_tree_there_is() -> None:
    drawn = re.findall(r"^( *)([├└─ ]*)(\w+Error)\b", inspect.getdoc(errors) or "", re.MULTILINE)
    bases = [name for _, line, name in drawn if not line]
    assert {kind.__name__ for kind in KINDS} == {name for _, line, name in drawn if line}
    assert {kind.__mro__[1].__name__ for kind in KINDS} == set(bases)
