"""Webhooks of forges: they report a change of a pull request, so that it is read at once.

In: requests of anyone, because a forge has no token of the gateway. Out: the place of what changed, of those
that prove the secret of their forge. Nothing else of their content is used: the pull request is read from the
forge as always. Sources: docs.github.com/webhooks, docs.gitlab.com/user/project/integrations/webhooks,
docs.gitea.com/usage/webhooks.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping

import msgspec
import structlog
from msgspec import Struct

from gateway.api import RawRequest, RawResponse
from plugins.coding_agents.settings import ForgeKind, ForgeSettings

log = structlog.get_logger("trunkline.coding_agents")

_PATH = re.compile(r"/webhooks/([a-z0-9.:-]{1,255})")
_SIGNATURES: Mapping[ForgeKind, tuple[str, ...]] = {
    "github": ("x-hub-signature-256",),
    "gitea": ("x-gitea-signature", "x-hub-signature-256"),
    "forgejo": ("x-forgejo-signature", "x-gitea-signature", "x-hub-signature-256"),
}
_GITLAB_TOKEN = "x-gitlab-token"  # noqa: S105 - the name of a header
_TEXT = {"Content-Type": "text/plain; charset=utf-8"}


class ChangedPlace(Struct, frozen=True):
    """A repository in which something changed. ``number`` is that of a pull request; 0 if it is not known."""

    host: str
    repository: str
    number: int = 0


class _Numbered(Struct, frozen=True):
    number: int = 0
    iid: int = 0


class _Repository(Struct, frozen=True):
    full_name: str = ""
    path_with_namespace: str = ""


class _Payload(Struct, frozen=True):
    """The fields of all three services that name a place; unknown ones are ignored."""

    repository: _Repository = _Repository()
    project: _Repository = _Repository()
    pull_request: _Numbered = _Numbered()
    issue: _Numbered = _Numbered()
    merge_request: _Numbered = _Numbered()
    object_attributes: _Numbered = _Numbered()
    object_kind: str = ""


def read_webhook(request: RawRequest, forges: Mapping[str, ForgeSettings]) -> ChangedPlace | RawResponse:
    """Return where something changed, or the answer to a request that is refused or says nothing."""
    found = _PATH.fullmatch(request.path.lower())
    settings = forges.get(found[1]) if found else None
    if found is None or settings is None or settings.webhook_secret is None:
        return answer(404, "there is no webhook of this forge")
    if request.method != "POST":
        return answer(405, "a webhook is a POST request")
    if not _is_proven(settings, request):
        log.info("webhook refused", forge=found[1])
        return answer(401, "the signature or token is not that of webhook_secret")
    try:
        payload = msgspec.json.decode(request.body, type=_Payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # Such as those with a form in place of JSON, or an event of another kind.
        return answer(400, "the webhook cannot be read; let the forge send application/json")
    repository = payload.repository.full_name or payload.project.path_with_namespace
    if not repository:
        return answer(200, "nothing to do")
    merge = payload.object_attributes.iid if payload.object_kind == "merge_request" else 0
    numbers = (payload.pull_request.number, payload.issue.number, payload.merge_request.iid, merge)
    return ChangedPlace(found[1], repository, next(filter(None, numbers), 0))


def answer(status: int, text: str) -> RawResponse:
    """Return an answer to a forge, which shows it to its user."""
    return RawResponse(status, _TEXT, f"{text}\n".encode())


def _is_proven(settings: ForgeSettings, request: RawRequest) -> bool:
    """Return whether a request has the secret of the forge, or a signature made with it."""
    assert settings.webhook_secret is not None
    secret = settings.webhook_secret.get_secret_value().encode()
    names = (_GITLAB_TOKEN,) if settings.kind == "gitlab" else _SIGNATURES[settings.kind]
    # A header may have bytes that are not UTF-8, which are surrogates in its text.
    given = next((request.headers[name] for name in names if name in request.headers), "").encode(
        errors="surrogatepass"
    )
    if settings.kind == "gitlab":
        return hmac.compare_digest(given, secret)
    expected = hmac.new(secret, request.body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(given.removeprefix(b"sha256="), expected.encode())
