"""Explanations exist in each language of the console, with the same values."""

from __future__ import annotations

import re
from pathlib import Path
from string import Formatter
from typing import get_args

import pytest

import gateway.why
from gateway.contract import errors
from gateway.trail.recorder import AFTER, NO_PROVIDER, OPEN_CIRCUIT
from gateway.trail.refused import Reason
from gateway.trail.steps import Step
from gateway.why.causes import Failure
from gateway.why.stations import draw_line
from gateway.why.words import CATALOGUE, ENGLISH, Language, Words

SOURCES = [path for path in Path(gateway.why.__file__).parent.glob("*.py") if path.name != "words.py"]
LITERAL = re.compile(r"""(?:words|has)\(\s*f?"([^"]+)"|"(plan\.\w+|siding\.\w+)\"""")
GERMAN = Words(language="de")


def names(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name}


def test_each_text_has_the_same_values_in_each_language() -> None:
    english, german = CATALOGUE["en"], CATALOGUE["de"]
    assert list(english) == list(german)
    assert {key for key in english if names(english[key]) != names(german[key])} == set()
    # A text that is the same in both is a name or a sign.
    same = {key for key in english if english[key] == german[key]}
    assert same == {"wait.platform", "line.hook"}


def test_each_key_of_the_code_has_a_text() -> None:
    used = {
        one or two for path in SOURCES for one, two in LITERAL.findall(path.read_text()) if "{" not in one
    }
    assert len(used) > 60
    assert used - CATALOGUE["de"].keys() == set()


def test_each_code_that_the_gateway_can_produce_has_a_text() -> None:
    expected = {f"doing.{one}" for one in ("tool", "model", "hooks", "delivery")}
    expected |= {f"refusal.{reason}" for reason in get_args(Reason) if reason != "gap"}
    of_providers = [
        name
        for name, one in vars(errors).items()
        if isinstance(one, type) and issubclass(one, errors.ProviderError)
    ]
    # The attempts of an exhausted chain are told one by one, and the base class is never raised.
    expected |= {f"cause.{name}" for name in of_providers} - {
        "cause.ProviderError",
        "cause.FallbackExhaustedError",
    }
    outcomes = ("answered", "notice", "stopped", "failed", "dead", "nothing")
    expected |= {f"line.final.{outcome}" for outcome in outcomes}
    waits = ("message", "key", "retry", "rate", "platform", "mailbox")
    expected |= {f"line.for.{reason}" for reason in waits}
    expected |= {f"wait.{reason}" for reason in ("key", "retry", "rate", "mailbox")}
    assert expected - CATALOGUE["de"].keys() == set()


@pytest.mark.parametrize("language", ["en", "de"])
def test_a_line_is_drawn_in_each_language(language: Language) -> None:
    words = Words(str.capitalize, language)
    steps = [
        Step(1, 0, "received", "line", detail={"channel": "line", "platform_id": "7"}),
        Step(1, 0, "model", "openai/big", "failed", {"code": "AuthFailedError"}),
        Step(1, 0, "fallback", "groq/a", "skipped", {"asked": False, "reason": NO_PROVIDER}),
        Step(1, 0, "fallback", "groq/b", "skipped", {"asked": False, "reason": OPEN_CIRCUIT}),
        Step(1, 0, "fallback", "groq/c", "skipped", {"asked": False, "reason": f"{AFTER}RateLimitError"}),
        Step(2, 0, "tool", "door", "ok", {"allowed_by": "rule door: *"}),
        Step(2, 0, "waited", "key", "waiting", {"for": "key"}),
        Step(3, 0, "final", "", "ok", {"outcome": "failed"}),
    ]
    stations = draw_line(steps, words)
    sidings = [siding for one in stations if isinstance(one.sidings, tuple) for siding in one.sidings]
    said = [one.text for one in stations], [one.reason for one in sidings], stations[2].detail
    assert said == LINES[language]
    assert [siding.yours for siding in sidings] == [True, False, False, False]


LINES = {
    "en": (
        [
            "Received",
            "Model failed",
            "Tool door",
            "Waits for a key of the provider",
            "Answered with an error",
        ],
        [
            "Openai rejected the API key",
            "not asked: no provider or key for it",
            "not asked: its circuit is open: it failed several times in a row",
            "not asked any more: the provider reached its rate limit",
        ],
        "allowed by the rule door: *",
    ),
    "de": (
        [
            "Empfangen",
            "Modell fehlgeschlagen",
            "Werkzeug door",
            "Wartet auf einen Schlüssel des Anbieters",
            "Beantwortet mit einem Fehler",
        ],
        [
            "Openai hat den API-Schlüssel abgelehnt",
            "nicht gefragt: kein Anbieter oder Schlüssel dafür",
            "nicht gefragt: vorerst ausgesetzt, weil mehrere Aufrufe nacheinander fehlschlugen",
            "nicht mehr gefragt: Der Anbieter hat sein Ratenlimit erreicht",
        ],
        "erlaubt durch die Regel door: *",
    ),
}


def test_numbers_are_written_as_in_the_language() -> None:
    assert (ENGLISH.duration(3_900), GERMAN.duration(3_900)) == ("3.9 s", "3,9 s")
    assert (ENGLISH.count(12_345), GERMAN.count(12_345)) == ("12,345", "12.345")
    assert GERMAN.duration(125_000) == "2 min 5 s"
    assert re.fullmatch(r"\d\d\.\d\d\.\d{4} \d\d:\d\d:\d\d", GERMAN.clock(0))
    assert Failure("", "", "OddError").in_words(GERMAN) == "Ein interner Fehler (OddError)"
