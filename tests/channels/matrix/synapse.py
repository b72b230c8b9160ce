"""A real homeserver for tests: Synapse in its own process, and its users."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import subprocess
import time
import uuid
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen

Json = dict[str, Any]

SERVER, SECRET = "hs.test", "only for tests"
_FAST = {"per_second": 10_000, "burst_count": 10_000}
_LIMITS = ("message", "joins", "invites", "room_creation", "login", "registration", "reports")


class Synapse:
    """Synapse with SQLite in memory, without rate limits and without federation."""

    def __init__(self, python: Path, folder: Path) -> None:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = int(one.getsockname()[1])
        self.url = f"http://127.0.0.1:{port}"
        self.log = folder / "output"
        self._folder = folder
        config = folder / "homeserver.yaml"
        self._command = [str(python), "-m", "synapse.app.homeserver", "-c", str(config)]
        config.write_text(json.dumps(self._config(port)))  # JSON is YAML

    def _config(self, port: int) -> Json:
        resources = [{"names": ["client", "media"]}]
        listener = {"port": port, "type": "http", "bind_addresses": ["127.0.0.1"], "resources": resources}
        several = {"invites": ("per_room", "per_user", "per_issuer"), "joins": ("local", "remote")}
        several["login"] = ("address", "account", "failed_attempts")
        limits = {
            f"rc_{name}": dict.fromkeys(several[name], _FAST) if name in several else _FAST
            for name in _LIMITS
        }
        return {
            "server_name": SERVER,
            "listeners": [{**listener, "tls": False}],
            "database": {"name": "sqlite3", "args": {"database": ":memory:"}},
            "media_store_path": str(self._folder / "media"),
            "signing_key_path": str(self._folder / "key"),
            "pid_file": str(self._folder / "pid"),
            "registration_shared_secret": SECRET,
            "macaroon_secret_key": SECRET,
            "form_secret": SECRET,
            "report_stats": False,
            "trusted_key_servers": [],
            "max_upload_size": "1M",
            **limits,
        }

    def start(self) -> None:
        """Start the server and wait until it answers."""
        subprocess.run([*self._command, "--generate-keys"], check=True, timeout=60, cwd=self._folder)
        with self.log.open("w") as output:
            self._process = subprocess.Popen(self._command, stdout=output, stderr=output, cwd=self._folder)
        deadline = time.monotonic() + 60
        while True:
            try:
                self.call("GET", "client/versions")
                return
            except URLError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise AssertionError(self.log.read_text()[-3000:]) from None
                time.sleep(0.05)

    def stop(self) -> None:
        """End the server."""
        self._process.kill()
        self._process.wait(10)

    def call(self, method: str, path: str, body: Json | None = None, token: str = "", **query: Any) -> Json:
        """Make a call of the client-server API."""
        return self.raw(
            method, f"/_matrix/{path}", None if body is None else json.dumps(body).encode(), token, query
        )

    def raw(self, method: str, path: str, data: bytes | None, token: str, query: Json) -> Json:
        """Make any call."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        url = f"{self.url}{path}?{urlencode(query)}"
        with urlopen(Request(url, data, headers, method=method), timeout=30) as answer:
            return dict(json.loads(answer.read()))

    def download(self, path: str, token: str) -> bytes:
        """Return the content of a file."""
        headers = {"Authorization": f"Bearer {token}"}
        with urlopen(Request(f"{self.url}{path}", headers=headers), timeout=30) as answer:
            return bytes(answer.read())

    def register(self, name: str) -> Person:
        """Make a user with a name that is new on this server."""
        path = "/_synapse/admin/v1/register"
        nonce = self.raw("GET", path, None, "", {})["nonce"]
        user = f"{name}-{uuid.uuid4().hex[:8]}"
        mac = hmac.new(SECRET.encode(), f"{nonce}\0{user}\0pw\0notadmin".encode(), hashlib.sha1).hexdigest()
        body = {"nonce": nonce, "username": user, "password": "pw", "mac": mac, "displayname": name.title()}
        made = self.raw("POST", path, json.dumps(body).encode(), "", {})
        return Person(self, str(made["user_id"]), str(made["access_token"]))


class Person:
    """A user of the server."""

    def __init__(self, server: Synapse, user: str, token: str) -> None:
        self.server = server
        self.user = user
        self.token = token

    def call(self, method: str, path: str, body: Json | None = None, **query: Any) -> Json:
        """Make a call with the user's token."""
        return self.server.call(method, f"client/v3/{path}", body, self.token, **query)

    def sign_in_again(self) -> str:
        """Return the access token of another device."""
        identifier = {"type": "m.id.user", "user": self.user}
        body = {"type": "m.login.password", "identifier": identifier, "password": "pw"}
        return str(self.server.call("POST", "client/v3/login", body)["access_token"])

    def create(self, *invited: Person, direct: bool = False, name: str = "", **more: Any) -> str:
        """Create a room. Return its id."""
        body = {
            "preset": "private_chat",
            "is_direct": direct,
            "invite": [one.user for one in invited],
            **more,
        }
        return str(self.call("POST", "createRoom", {**body, **({"name": name} if name else {})})["room_id"])

    def send(self, room: str, content: Json, kind: str = "m.room.message") -> str:
        """Send an event. Return its id."""
        path = f"rooms/{quote(room)}/send/{kind}/{uuid.uuid4().hex}"
        return str(self.call("PUT", path, content)["event_id"])

    def say(self, room: str, text: str, **content: Any) -> str:
        """Write a message. Return its event id."""
        return self.send(room, {"msgtype": "m.text", "body": text, **content})

    def edit(self, room: str, event: str, text: str) -> str:
        """Edit a message of the user."""
        new = {"msgtype": "m.text", "body": text}
        related = {"rel_type": "m.replace", "event_id": event}
        return self.say(room, f"* {text}", **{"m.new_content": new, "m.relates_to": related})

    def redact(self, room: str, event: str) -> None:
        """Delete an event."""
        self.call("PUT", f"rooms/{quote(room)}/redact/{quote(event)}/{uuid.uuid4().hex}", {})

    def upload(self, name: str, data: bytes) -> str:
        """Upload a file. Return its URI."""
        path = "/_matrix/media/v3/upload"
        return str(self.server.raw("POST", path, data, self.token, {"filename": name})["content_uri"])

    def membership(self, room: str, user: str) -> str:
        """Return the membership of a user in a room."""
        try:
            path = f"rooms/{quote(room)}/state/m.room.member/{quote(user)}"
            return str(self.call("GET", path)["membership"])
        except HTTPError:
            return "leave"

    def shown(self, room: str, user: str) -> list[Json]:
        """Return the contents of a user's messages as clients show them, with edits applied."""
        wanted = json.dumps({"types": ["m.room.message"], "senders": [user]})
        found = self.call("GET", f"rooms/{quote(room)}/messages", dir="b", limit=500, filter=wanted)["chunk"]
        shown: list[Json] = []
        for event in reversed(found):
            related = event["content"].get("m.relates_to", {})
            if event["content"] and related.get("rel_type") != "m.replace":
                edit = event.get("unsigned", {}).get("m.relations", {}).get("m.replace")
                shown.append(edit["content"]["m.new_content"] if edit else event["content"])
        return shown
