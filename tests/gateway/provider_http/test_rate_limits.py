"""What headers say of limits, in the words of each vendor."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from multidict import CIMultiDict

from gateway.provider_http.rate_limits import parse_reset, seconds_until_reset
from gateway.provider_http.upstream_errors import parse_error_response

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1s", 1),
        ("6m0s", 360),
        ("1m30.951s", 90.951),
        ("20ms", 0.02),
        ("1h2m", 3720),
        ("2d", 172_800),
        ("12", 12),
        ("0.5", 0.5),
        ("1800000010", 10),
        ("1800000010000", 10),
        ("2027-01-15T08:00:30Z", 30),
        ("2027-01-15T09:00:30+01:00", 30),
        ("2020-01-15T08:00:30Z", 0),
        ("2027-01-15T08:00:30", 0),
        ("1700000000", 0),
        ("", 0),
        ("-5", 0),
        ("nan", 0),
        ("inf", 0),
        ("1.2.3s", 0),
        ("soon", 0),
        ("\uff11\uff12s", 12),
    ],
)
def test_a_reset_is_read_in_every_form(text: str, seconds: float) -> None:
    assert parse_reset(text, NOW) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, 0),
        ({"x-ratelimit-remaining-requests": "59", "x-ratelimit-reset-requests": "1s"}, 0),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1s"}, 1),
        (
            {
                "X-RateLimit-Remaining-Requests": "0",
                "X-RateLimit-Reset-Requests": "1s",
                "X-RateLimit-Remaining-Tokens": "0",
                "X-RateLimit-Reset-Tokens": "6m0s",
            },
            360,
        ),
        (
            {
                "anthropic-ratelimit-tokens-remaining": "0",
                "anthropic-ratelimit-tokens-reset": "2027-01-15T08:00:07Z",
                "anthropic-ratelimit-requests-remaining": "9",
                "anthropic-ratelimit-requests-reset": "2027-01-15T08:01:00Z",
            },
            7,
        ),
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1800000009000"}, 9),
        ({"ratelimit-remaining": "0", "ratelimit-reset": "3"}, 3),
        ({"x-ratelimit-remaining-requests": "0"}, 0),
        ({"x-ratelimit-remaining-requests": "none", "x-ratelimit-reset-requests": "5"}, 0),
        ({"remaining": "0", "reset": "5"}, 0),
    ],
)
def test_that_nothing_is_left_is_read_in_every_vendors_words(headers: dict[str, str], seconds: float) -> None:
    assert seconds_until_reset(CIMultiDict(headers), NOW) == pytest.approx(seconds)


def test_004_T13_a_refusal_that_names_no_wait_is_waited_out_as_the_limit_says() -> None:
    headers = {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "1.5s"}
    assert parse_error_response(429, CIMultiDict(headers), b"", NOW).retry_after == 1.5
    assert parse_error_response(429, CIMultiDict({**headers, "retry-after": "3"}), b"", NOW).retry_after == 3
    assert parse_error_response(500, CIMultiDict(headers), b"", NOW).retry_after is None


@pytest.mark.parametrize("year", [1971, 2026, 2090])
def test_a_point_in_time_is_one_of_the_servers_clock(year: int) -> None:
    def at(minute: int) -> str:
        return format_datetime(datetime(year, 3, 1, 12, minute, tzinfo=UTC), usegmt=True)

    answer = CIMultiDict({"date": at(0), "retry-after": at(2)})
    assert parse_error_response(429, answer, b"").retry_after == 120
    reset = f"{year}-03-01T12:03:00Z"
    limits = {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": reset}
    assert seconds_until_reset(CIMultiDict({"date": at(0), **limits})) == 180
