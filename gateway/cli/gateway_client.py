"""Client of the REST API of a running gateway, at the address that the settings name."""

from __future__ import annotations

import http.client
import ipaddress
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from gateway.cli.command_group import report_to
from gateway.contract import errors
from gateway.contract.errors import TrunklineError
from gateway.settings import Settings

_PROBE_SECONDS = 1.0
_CALL_SECONDS = 30.0
_REPORT_SECONDS = 5.0
_SILENCE_SECONDS = 60.0
"""Time without a byte after which a stream is lost; the gateway sends one every 15 s."""


class GatewayUnreachableError(TrunklineError):
    """No gateway answers at the address in the settings."""

    retryable = True


def running_gateway(settings: Settings) -> str | None:
    """Return the URL of the gateway that runs with these settings, without a slash at the end, or None."""
    url = address(settings)
    try:
        answer = _exchange(urllib.request.Request(f"{url}/healthz"), _PROBE_SECONDS)  # noqa: S310
    except (OSError, ValueError, http.client.HTTPException):
        return None
    return url if isinstance(answer, dict) and "ok" in answer else None


def call(settings: Settings, method: str, path: str, body: Any = None, seconds: float = _CALL_SECONDS) -> Any:
    """Call the running gateway. Return the JSON of its response, or None if that has no body.

    Raises the error that the response names (NotFoundError, UnauthorizedError …), and
    GatewayUnreachableError when no gateway responds.
    """
    url = address(settings)
    try:
        answer = _exchange(_request(settings, method, f"{url}{path}", body), seconds)
        report_to(url, partial(_report, settings))
        return answer
    except urllib.error.HTTPError as refusal:
        report_to(url, partial(_report, settings))
        raise _named(refusal.code, refusal.read()) from None
    except (OSError, http.client.HTTPException) as error:
        raise GatewayUnreachableError(_silent(url, error)) from None
    except ValueError:
        raise GatewayUnreachableError(f"{url} is not a Trunkline gateway") from None


def _report(settings: Settings, command: str, args: str, ok: bool) -> None:
    """Report a command that used the API. A gateway that cannot take it does not fail the command."""
    body = {"command": command, "args": args, "ok": ok}
    request = _request(settings, "POST", f"{address(settings)}/api/commands", body)
    with suppress(OSError, ValueError, http.client.HTTPException):
        _exchange(request, _REPORT_SECONDS)


def follow(settings: Settings, path: str, body: Any = None) -> Iterator[Any]:
    """Yield the JSON of each server-sent event of a path until the gateway ends the stream.

    With a body it is a POST request.

    Raises the error that a refusal names, and GatewayUnreachableError when no gateway responds or it is lost.
    """
    url = address(settings)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = _request(settings, "GET" if body is None else "POST", f"{url}{path}", body)
    try:
        with opener.open(request, timeout=_SILENCE_SECONDS) as stream:
            report_to(url, partial(_report, settings))
            for line in stream:
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])
    except urllib.error.HTTPError as refusal:
        raise _named(refusal.code, refusal.read()) from None
    except (OSError, http.client.HTTPException) as error:
        raise GatewayUnreachableError(_silent(url, error)) from None


def address(settings: Settings) -> str:
    """Return the URL of the gateway for this machine: loopback if it listens on all addresses."""
    host = settings.server.host.strip("[]")
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return f"http://{host}:{settings.server.port}"
    if ip.is_unspecified:
        ip = ipaddress.ip_address("127.0.0.1" if ip.version == 4 else "::1")
    return (
        f"http://[{ip}]:{settings.server.port}" if ip.version == 6 else f"http://{ip}:{settings.server.port}"
    )


def _request(settings: Settings, method: str, url: str, body: Any) -> urllib.request.Request:
    headers = {"Accept": "application/json"}
    if settings.server.token is not None:
        headers["Authorization"] = f"Bearer {settings.server.token.get_secret_value()}"
    data = None
    if body is not None:
        headers["Content-Type"] = "application/json"
        data = json.dumps(body).encode()
    return urllib.request.Request(url, data, headers, method=method)  # noqa: S310 - always http


def _exchange(request: urllib.request.Request, seconds: float) -> Any:
    # No proxy: the gateway is on this machine, and a proxy would see the token.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=seconds) as response:
        answer = response.read()
    return json.loads(answer) if answer else None


def _named(status: int, body: bytes) -> TrunklineError:
    """Return the error that an error response names, as the class of that name."""
    try:
        answer = json.loads(body)
        name, message = str(answer["error_name"]), str(answer["message"])
    except (ValueError, KeyError, TypeError):
        return TrunklineError(f"the gateway responded with status {status}")
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, TrunklineError):
        return kind(message)
    return TrunklineError(f"{name}: {message}")


def _silent(url: str, error: Exception) -> str:
    return f"no gateway responds at {url} ({_reason(error)}); start one: trunkline run"


def _reason(error: Exception) -> str:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    return getattr(reason, "strerror", None) or str(reason) or type(error).__name__
