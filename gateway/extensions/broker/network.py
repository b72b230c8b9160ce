"""Requests of confined plugins, through the guarded client: each hop is checked against the allow list."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence

from msgspec import Struct
from yarl import URL

from gateway.contract.errors import InvalidRequestError
from gateway.extensions.admission.capabilities import NetworkAccess
from gateway.extensions.broker.gate import CapabilityDenied, Gate, Use
from gateway.extensions.process.frames import Reply
from gateway.fetching import Network, Reach, Request, request

MOST_INLINE = 500_000
"""Bytes of an answer that travel in the reply; a longer one is passed as a descriptor."""
_MOST_BYTES, _MOST_SECONDS = 5_000_000, 60.0
_REFUSED_HEADERS = frozenset(
    (
        *("connection", "content-length", "cookie", "host", "keep-alive", "proxy-authorization"),
        *("te", "trailer", "transfer-encoding", "upgrade"),
    )
)


class HttpCall(Struct, frozen=True, forbid_unknown_fields=True):
    """A request. ``body`` is base64, ``timeout`` in seconds."""

    url: str
    method: str = "GET"
    headers: Mapping[str, str] = {}
    body: str = ""
    timeout: float = 30.0
    session: str = ""


class Http:
    """Requests of one plugin. ``private`` are the networks of ``[fetch] allow``."""

    def __init__(self, access: NetworkAccess, gate: Gate, private: Sequence[Network]) -> None:
        self._access = access
        self._gate = gate
        self._private = tuple(private)

    async def request(self, call: HttpCall) -> Reply:
        """Make a request and return its status, headers and body."""
        method = call.method.upper()
        refused = sorted(name for name in call.headers if name.lower() in _REFUSED_HEADERS)
        if refused:
            raise InvalidRequestError(f"http.request: the header {refused[0]!r} is set by the gateway")
        if not all(f"{name}{value}".isprintable() for name, value in call.headers.items()):
            raise InvalidRequestError("http.request: a header has a control character")
        if not 0 < call.timeout <= _MOST_SECONDS:
            raise InvalidRequestError(f"http.request: timeout is more than 0 and at most {_MOST_SECONDS:g}")
        address = _parsed(call.url)
        reach = Reach(allow=self._private, most_bytes=_MOST_BYTES, seconds=call.timeout)
        asked = Request(method, call.url, call.headers, base64.b64decode(call.body), self._check_hop)
        async with self._gate.using(self._use(address, method, call)):
            answer = await request(asked, reach)
        found = {"url": answer.url, "status": answer.status, "headers": answer.headers}
        if len(answer.data) <= MOST_INLINE:
            return Reply({**found, "body": base64.b64encode(answer.data).decode()})
        return Reply(found, as_descriptor(answer.data))

    def _use(self, address: URL, method: str, call: HttpCall) -> Use:
        entry = self._entry(address)
        declared = self._access.enabled and entry is not None
        place = f"{address.host}:{address.port}"
        missing = f'capabilities.network.allowlist: ["{_entry_for(address)}"]'
        if declared and method not in self._access.methods:
            declared, missing = False, f"capabilities.network.methods: [{method}]"
        grant = f"network:{entry}" if declared else None
        action = f"talk to {place} ({method} {address.path})"
        return Use("network", f"{method} {place}", grant, action, missing, call.session, (method, call.url))

    def _check_hop(self, address: URL) -> None:
        """Check an address of a redirect: it needs a grant already, since one question is enough."""
        entry = self._entry(address)
        if entry is None or not self._gate.holds(f"network:{entry}"):
            raise CapabilityDenied(f"network: a redirect leads to {address.host!r}, which was not granted")

    def _entry(self, address: URL) -> str | None:
        """Return the first entry of the allow list that covers an address."""
        return next((entry for entry in self._access.allowlist if covers(entry, address)), None)


def covers(entry: str, address: URL) -> bool:
    """Return whether an entry of an allow list, such as ``*.example.org:8443``, covers an address.

    An entry means https unless it begins with ``http://``, and the port of its scheme unless it names one.
    """
    scheme, _, rest = entry.rpartition("://")
    scheme = scheme or "https"
    host, _, port = rest.partition(":")
    wanted = int(port) if port else {"https": 443, "http": 80}.get(scheme)
    name, host = (address.raw_host or "").lower().rstrip("."), host.lower().rstrip(".")
    if address.scheme != scheme or address.port != wanted:
        return False
    return name.endswith(host[1:]) and len(name) >= len(host) if host.startswith("*.") else name == host


def _entry_for(address: URL) -> str:
    """Return the shortest entry of an allow list that covers an address."""
    host = address.raw_host or ""
    return next(
        entry
        for entry in (host, f"http://{host}", f"{host}:{address.port}", f"http://{host}:{address.port}")
        if covers(entry, address)
    )


def _parsed(url: str) -> URL:
    try:
        address = URL(url)
        if address.host and address.port:
            return address
    except ValueError:
        pass
    raise InvalidRequestError(f"http.request: {url[:200]!r} is not a web address")


def as_descriptor(data: bytes) -> int:
    """Return a descriptor of an anonymous file with this content, at its beginning."""
    descriptor = os.memfd_create("answer", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
