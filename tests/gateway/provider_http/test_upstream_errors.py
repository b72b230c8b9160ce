"""What a backend means when it refuses: one of our named errors, without its secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Struct

from gateway import ProviderConfig, ProviderError
from gateway.contract.errors import (
    BadRequestError,
    ContextLengthError,
    ModelNotFoundError,
    QuotaExceededError,
)
from gateway.provider_http import (
    AuthFailedError,
    ContentFilterError,
    RateLimitError,
    ServerFailedError,
    StreamTimeoutError,
)
from gateway.provider_http.call import RetryPolicy
from gateway.provider_http.upstream_errors import (
    TEXT_LIMIT,
    parse_error_response,
    parse_retry_after,
    raise_stream_error,
    redact,
    unreadable_event,
)

NOW = 1_800_000_000.0


class Recorded(Struct):
    """A refusal of a vendor, as users reported it, and the name of the error for it."""

    vendor: str
    kind: str
    status: int
    body: msgspec.Raw


RECORDED = msgspec.json.Decoder(Recorded).decode_lines(
    Path(__file__).with_name("refusals.jsonl").read_bytes()
)


def refused(status: int, **error: Any) -> ProviderError:
    """The error for a response that tells of an error."""
    return parse_error_response(status, {}, msgspec.json.encode({"error": error}), NOW).to_exception()


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (400, {"message": "no"}, BadRequestError),
        (401, {}, AuthFailedError),
        (402, {"message": "Insufficient Balance"}, QuotaExceededError),
        (403, {}, AuthFailedError),
        (404, {"message": "The model `x` does not exist"}, ModelNotFoundError),
        (400, {"code": "model_not_found"}, ModelNotFoundError),
        (400, {"code": "context_length_exceeded"}, ContextLengthError),
        (400, {"message": "prompt is too long: 210000 tokens > 200000 maximum"}, ContextLengthError),
        (413, {}, ContextLengthError),
        (400, {"code": "content_filter"}, ContentFilterError),
        (400, {"message": "rejected by our safety system"}, ContentFilterError),
        (408, {}, StreamTimeoutError),
        (429, {}, RateLimitError),
        (500, {}, ServerFailedError),
        (529, {"type": "overloaded_error"}, ServerFailedError),
        (418, {}, BadRequestError),
        (424, {"message": "the model failed"}, ServerFailedError),
        (498, {"message": "invalid token"}, AuthFailedError),
        (400, {"message": "API key not valid. Please pass a valid API key."}, AuthFailedError),
        (400, {"message": "Incorrect API key provided: xa***"}, AuthFailedError),
        (403, {"message": "the prompt was flagged"}, ContentFilterError),
        (400, {"message": "The input token count (12) exceeds the maximum"}, ContextLengthError),
        (400, {"message": "no", "metadata": {"raw": "maximum context length is 8"}}, ContextLengthError),
        (400, {"message": "no", "innererror": {"code": "ResponsibleAIPolicy"}}, ContentFilterError),
    ],
)
def test_004_40_a_refusal_has_a_name(status: int, error: dict[str, Any], kind: type[ProviderError]) -> None:
    failure = refused(status, **error)
    assert type(failure) is kind
    assert failure.upstream_status == status
    assert str(status) in str(failure)


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda each: f"{each.vendor} {each.kind}")
def test_the_words_of_each_vendor_are_understood(recorded: Recorded) -> None:
    failure = parse_error_response(recorded.status, {}, bytes(recorded.body), NOW).to_exception()
    assert failure.name == recorded.kind


def test_a_quota_that_is_used_up_is_not_asked_again() -> None:
    assert refused(429).retryable
    assert not refused(429, code="insufficient_quota").retryable


@pytest.mark.parametrize(
    "words",
    [
        "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing.",
        "You have reached your specified API usage limits. You will regain access on 2027-01-01.",
    ],
)
def test_an_account_without_credit_is_not_a_bad_request(words: str) -> None:
    assert type(refused(400, type="invalid_request_error", message=words)) is QuotaExceededError


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error": "plain words"}', "plain words"),
        (b'{"detail": "elsewhere"}', "elsewhere"),
        (b'{"detail": {"error": "deeper"}}', "deeper"),
        (b'{"detail": [{"loc": ["max"], "msg": "unknown"}]}', "no reason given"),
        (b'{"message": {"detail": [{"msg": "unknown"}]}}', '{"detail":[{"msg":"unknown"}]}'),
        (b'{"object": "error", "message": "flat", "code": "3230"}', "flat"),
        (b'{"code": "words", "error": "in words"}', "in words"),
        (b'{"Message": "Shouted"}', "Shouted"),
        (b'[{"error": {"message": "in a list"}}]', "in a list"),
        (b'{"error": {"message": ""}}', "no reason given"),
        (b"just text", "just text"),
        (b"<html><body>Bad Gateway</body></html>", "no reason given"),
        (b"", "no reason given"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"[1, 2]", "[1, 2]"),
        (b"{broken", "no reason given"),
    ],
)
def test_a_reason_is_found_wherever_it_is_reported(body: bytes, words: str) -> None:
    assert str(parse_error_response(400, {}, body, NOW).to_exception()).endswith(f": {words}")


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "7"}, 7.0),
        ({"retry-after": "Fri, 15 Jan 2027 08:00:30 GMT"}, 30.0),
        ({"retry-after": "Fri, 15 Jan 2027 07:00:00 GMT"}, 0.0),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "whenever"}, None),
    ],
)
def test_004_T13_how_long_to_wait_is_read_in_every_form(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert parse_retry_after(headers, NOW) == seconds


def test_a_delay_may_be_in_the_details_and_headers_outrank_it() -> None:
    error = {"code": 429, "message": "slower", "details": [{"@type": "x"}, "y", {"retryDelay": "34.5s"}]}
    body = msgspec.json.encode({"error": error})
    assert parse_error_response(429, {}, body, NOW).to_exception().retry_after == 34.5
    assert parse_error_response(429, {"retry-after": "2"}, body, NOW).to_exception().retry_after == 2
    assert (
        parse_error_response(429, {}, body.replace(b"34.5s", b"soon"), NOW).to_exception().retry_after is None
    )


def test_a_quota_of_the_day_is_not_waited_for() -> None:
    spent = {"violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}]}
    error = {"code": 429, "message": "quota", "details": [spent, {"retryDelay": "34.5s"}]}
    failure = parse_error_response(429, {}, msgspec.json.encode({"error": error}), NOW).to_exception()
    assert (type(failure), failure.retry_after) == (RateLimitError, 3600)
    assert RetryPolicy(ProviderConfig(id="google")).next_pause(failure, 1) is None


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b'{"error": {"type": "overloaded_error", "message": "busy"}}', ServerFailedError, 529),
        (b'{"error": {"code": 429, "message": "slower"}}', RateLimitError, 429),
        (b'{"error": {"type": "invalid_request_error"}}', BadRequestError, 400),
        (b'{"error": {}}', ServerFailedError, 500),
    ],
)
def test_an_error_in_the_middle_of_a_stream_is_judged_alike(
    body: bytes, kind: type[ProviderError], status: int
) -> None:
    with pytest.raises(ProviderError) as caught:
        raise_stream_error(body)
    assert (type(caught.value), caught.value.upstream_status) == (kind, status)


def test_no_error_quotes_a_secret_or_a_book() -> None:
    config = ProviderConfig(
        id="own",
        api_key="very-secret",
        custom_headers={"x": "hidden-too"},
        credentials={"y": "my-own-secret"},
    )
    words = "key very-secret, header hidden-too, my-own-secret, sk-abcdef123456, Bearer abc.def"
    safe = str(redact(BadRequestError(words), config))
    assert [
        secret
        for secret in ("very-secret", "hidden-too", "my-own-secret", "abcdef", "abc.def")
        if secret in safe
    ] == []
    long = redact(BadRequestError("x" * 10_000), config)
    assert len(str(long)) == TEXT_LIMIT + 1
    assert long.provider == "own"


def test_an_event_that_cannot_be_read_is_quoted_in_part() -> None:
    failure = unreadable_event(b"\xff" + b"x" * 1000, ValueError("no JSON"))
    assert "no JSON" in str(failure)
    assert len(str(failure)) < 200
