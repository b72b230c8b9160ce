"""Bot API: handles a call, from its bytes to its response."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from aiohttp import web
from msgspec import structs

from channels.telegram.fake import chats, messages, text
from channels.telegram.fake.calls import (
    Refused,
    Request,
    Upload,
    bad,
    from_json,
    method_names,
    parse_call,
    read,
)
from channels.telegram.fake.delivery import Address, Webhook
from channels.telegram.fake.limits import Limits
from channels.telegram.fake.state import World
from gateway.testing.fake_platform import FakeServer, Fault, as_json, cut

_HANDLERS = {**messages.METHODS, **chats.METHODS}
_WRITES = ("send", "edit", "delete", "set", "create", "close", "reopen", "answer")
_NOT_SUPPORTED = (
    "direct_messages_topic_id",
    "ephemeral_message_parameters",
    "inline_message_id",
)
_NOT_IN_ANSWERS = ("deleteWebhook", "setWebhook", "close", "logOut")


class Api:
    """Handler of ``/bot{token}/{method}`` and ``/file/bot{token}/{path}``."""

    def __init__(self, fake: FakeServer, world: World, limits: Limits, retry_after: int) -> None:
        self.webhook = Webhook(world.clock, world.changes, world.updates, self._call_from_webhook)
        self.retry_after = retry_after
        self._fake = fake
        self._world = world
        self._limits = limits

    async def serve(self, http: web.Request) -> web.StreamResponse:
        """Handle one call."""
        method = method_names().get(http.match_info["method"].lower(), http.match_info["method"])
        if http.match_info["token"] != self._world.token:
            return _refusal(Refused("Unauthorized", 401))
        try:
            texts, uploads = await read(http)
        except Refused as refused:
            self._fake.record(method, {}, refused.problem, status=refused.code, answer=refused.description)
            return _refusal(refused)
        fault = self._fake.faults.of(method)
        answer = await self._call(method, texts, uploads, fault)
        if fault.startswith("drop"):
            cut(http)
        return answer

    async def file(self, http: web.Request) -> web.StreamResponse:
        """Return a file by the link that ``getFile`` returned."""
        is_known = http.match_info["token"] == self._world.token
        upload = self._world.files.at(http.match_info["path"]) if is_known else None
        if upload is None:
            return _refusal(Refused("Not Found", 404))
        return web.Response(body=upload.data, content_type="application/octet-stream")

    async def _call(
        self, method: str, texts: Mapping[str, str], uploads: Mapping[str, Upload], fault: Fault = "none"
    ) -> web.Response:
        """Check a call, apply it unless a fault prevents that, and record it in the transcript."""
        given: Mapping[str, Any] = texts
        remarks: list[str] = []
        try:
            asked = parse_call(method, texts, uploads)
            given, method = asked.arguments, asked.method
            remarks = [*asked.remarks, *text.remarks(asked)]
            remarks += [
                f"this fake does not support {name}" for name in _NOT_SUPPORTED if name in asked.arguments
            ]
            asked = self._in_business(asked)
            self._limits.check(asked)
            if fault == "slow_down":
                raise self._limits.slow_down(asked, self.retry_after)
            result = None if fault.endswith("before") else await self._do(asked)
            result = self._fake.faults.replace_answer(method, result)
        except Refused as refused:
            problems = (refused.problem, *remarks)
            said = refused.description
            self._fake.record(method, given, *problems, status=refused.code, answer=said, fault=fault)
            return _refusal(refused)
        broken = fault not in ("none", "slow_down")
        self._fake.record(method, given, *remarks, status=502 if broken else 200, answer=result, fault=fault)
        return _refusal(Refused("Bad Gateway", 502)) if broken else as_json({"ok": True, "result": result})

    async def _do(self, asked: Request) -> Any:
        match asked.method:
            case "getUpdates":
                return await self._updates(asked)
            case "setWebhook" | "deleteWebhook":
                return self._set_webhook(asked)
            case "getWebhookInfo":
                return self.webhook.info()
            case method if method in _HANDLERS:
                try:
                    result = _HANDLERS[method](self._world, asked)
                except Refused as refused:
                    if not refused.is_counted:
                        self._limits.forgive(asked)
                    raise
                if method.startswith(_WRITES):
                    self._fake.applied()
                return result
            case method:
                raise Refused("Not Found: method not found", 404, f"this fake does not support {method}")

    def _in_business(self, asked: Request) -> Request:
        """Return a call with the fake's own id of its chat, if that is a chat of a business account. Raises
        Refused if the bot may not write there, or names such a chat in another way."""
        world, connection, chat_id = self._world, asked.get("business_connection_id"), asked.get("chat_id")
        if chat_id is None:
            return asked
        if connection is None:
            if chat_id in world.chats and world.chats[chat_id].connection is not None:
                raise bad("chat not found")
            return asked
        chat = world.business_chat(connection, chat_id)
        messages.check_business(world, chat, asked)
        return structs.replace(asked, arguments={**asked.arguments, "chat_id": chat.id})

    async def _updates(self, asked: Request) -> list[dict[str, Any]]:
        batch = await self._world.updates.poll(
            asked.get("offset", 0),
            asked.get("limit", 100),
            asked.get("timeout", 0),
            asked.get("allowed_updates"),
        )
        return [update.json for update in batch for _ in range(2 if self._fake.faults.is_repeated() else 1)]

    def _set_webhook(self, asked: Request) -> bool:
        updates = self._world.updates
        if asked.get("drop_pending_updates"):
            updates.forget()
        address = None
        if asked.get("url"):
            connections = max(1, min(100, asked.get("max_connections", 40)))
            address = Address(url=asked["url"], secret=asked.get("secret_token", ""), connections=connections)
        self.webhook.set(address)
        updates.allow(asked.get("allowed_updates"))
        if address is not None:
            updates.terminate("setWebhook request")
        return True

    async def _call_from_webhook(self, body: bytes, content_type: str) -> None:
        """Make the call that a webhook response may contain; its result is not reported to the bot."""
        if content_type == "application/json":
            texts = from_json(body) if body.lstrip().startswith(b"{") else {}
        else:
            texts = dict(parse_qsl(body.decode(errors="replace")))
        method = texts.get("method", "")
        if method and method not in _NOT_IN_ANSWERS and not method.lower().startswith("get"):
            await self._call(method, texts, {})


def _refusal(refused: Refused) -> web.Response:
    said: dict[str, Any] = {"ok": False, "error_code": refused.code, "description": refused.description}
    if refused.parameters:
        said["parameters"] = refused.parameters
    wait = refused.parameters.get("retry_after")
    return as_json(said, refused.code, {"Retry-After": str(wait)} if wait else None)
