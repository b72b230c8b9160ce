"""Clients with the token may talk; after wrong guesses they have to wait."""

from __future__ import annotations

import time

import pytest

from gateway.access.tokens import OWNER, Auth, Identity, bearer_token
from gateway.contract.errors import TooManyRequestsError, UnauthorizedError

TOKEN = "0123456789abcdef0123456789abcdef"


def test_without_a_token_everybody_is_the_owner() -> None:
    auth = Auth(None)
    assert auth.open
    assert [auth.user_of(token, "::1") for token in (None, "", "anything")] == [OWNER] * 3


@pytest.mark.parametrize("token", ["", TOKEN[:-1], TOKEN + "0", TOKEN.upper(), "\ud800", "ü" * 32])
def test_only_the_token_itself_is_right(token: str) -> None:
    auth = Auth(TOKEN)
    assert not auth.open
    assert auth.user_of(TOKEN, "::1") == OWNER
    with pytest.raises(UnauthorizedError):
        auth.user_of(token, "::1")


def test_a_peer_that_guesses_ten_times_has_to_wait_and_no_other() -> None:
    auth = Auth(TOKEN)
    for n in range(10):
        with pytest.raises(UnauthorizedError):
            auth.user_of(f"guess {n}", "10.0.0.1")
    with pytest.raises(TooManyRequestsError):
        auth.user_of("another", "10.0.0.1")
    assert auth.user_of(TOKEN, "10.0.0.2") == OWNER


def test_a_right_token_works_after_wrong_guesses_from_its_address_and_does_not_reset_them() -> None:
    auth = Auth(TOKEN)
    for n in range(12):
        with pytest.raises(UnauthorizedError if n < 10 else TooManyRequestsError):
            auth.user_of("guess", "10.0.0.1")
        assert auth.user_of(TOKEN, "10.0.0.1") == OWNER


def test_a_missing_token_is_not_a_guess() -> None:
    auth = Auth(TOKEN)
    for _ in range(20):
        with pytest.raises(UnauthorizedError):
            auth.user_of(None, "10.0.0.1")


@pytest.mark.parametrize(
    ("header", "token"),
    [
        ("Bearer abc", "abc"),
        ("bearer  abc ", "abc"),
        ("Basic abc", None),
        ("", None),
        ("Bearer", ""),
        ("abc", None),
    ],
)
def test_a_bearer_token_is_read(header: str, token: str | None) -> None:
    assert bearer_token(header) == token


@pytest.mark.parametrize(
    ("minutes", "confirmed"), [(0, True), (-4, True), (-6, False), (6, False), (600, False)]
)
def test_a_proof_counts_for_five_minutes_also_if_the_clock_was_set_back(
    minutes: int, confirmed: bool
) -> None:
    at = int(time.time() * 1000) + minutes * 60_000
    assert Identity(OWNER, "admin", confirmed_at=at).is_confirmed is confirmed
