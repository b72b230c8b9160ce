"""Users of a workspace, the app's account in it, and its installation by OAuth."""

from __future__ import annotations

import base64
import binascii
import html
import uuid
from collections.abc import Iterable, Mapping
from urllib.parse import parse_qsl, urlencode, urlsplit

from msgspec import Struct

from channels.slack.fake.calls import Call, RefusalError, methods
from channels.slack.fake.chats import page_of
from channels.slack.fake.delivery import emit
from channels.slack.fake.state import Grant, Json, State, User, UserGroup, Workspace

CODE_LIFE = 10 * 60


class Code(Struct, kw_only=True):
    """Authorization that an OAuth ``code`` can be exchanged for."""

    team: str
    user: str
    scopes: tuple[str, ...]
    user_scopes: tuple[str, ...]
    redirect_uri: str | None
    until: float
    used: bool = False


class Installer:
    """OAuth server of the fake. ``redirect_uris`` are those that the app registered; if empty, any is
    accepted.
    """

    def __init__(self, state: State) -> None:
        self.redirect_uris: list[str] = []
        self._state = state
        self._codes: dict[str, Code] = {}

    def page(self, query: Mapping[str, str]) -> tuple[int, str]:
        """Return the status and HTML of the page that asks where to install the app."""
        wrong = self._wrong(query)
        if wrong:
            return 400, f"<!DOCTYPE html><title>Slack</title><h1>{html.escape(wrong)}</h1>"
        hidden = "".join(
            f'<input type="hidden" name="{html.escape(name)}" value="{html.escape(value)}">'
            for name, value in query.items()
        )
        buttons = "".join(
            f'<button name="install" value="{team.id}">Allow in {html.escape(team.name)}</button> '
            for team in self._state.teams.values()
        )
        name = html.escape(self._state.app.name)
        cancel = '<button name="install" value="">Cancel</button>'
        return 200, (
            f'<!DOCTYPE html><html lang="en"><title>{name}</title><h1>{name} wants to access Slack</h1>'
            f'<form method="post">{hidden}{buttons}{cancel}</form>'
        )

    def approve(self, query: Mapping[str, str], team: Workspace | None, user: User | None) -> str:
        """Return the URL to redirect the user to: with a code, or with ``access_denied`` if ``team`` is None.

        Raises ValueError if the query is invalid.
        """
        wrong = self._wrong(query)
        if wrong:
            raise ValueError(wrong)
        target = query.get("redirect_uri") or (self.redirect_uris or [""])[0]
        answer = {"state": query.get("state", "")}
        if team is None or user is None:
            return _joined(target, {"error": "access_denied", **answer})
        code = uuid.uuid4().hex
        self._codes[code] = Code(
            team=team.id,
            user=user.id,
            scopes=_split(query.get("scope")),
            user_scopes=_split(query.get("user_scope")),
            redirect_uri=query.get("redirect_uri"),
            until=self._state.clock.now() + CODE_LIFE,
        )
        return _joined(target, {"code": code, **answer})

    def exchange(self, call: Call) -> Json:
        """``oauth.v2.access``: exchange a code for tokens, once."""
        app = self._state.app
        if call.get("client_id") != app.client_id:
            raise RefusalError("invalid_client_id", "the client_id is wrong")
        if call.get("client_secret") != app.client_secret:
            raise RefusalError("bad_client_secret", "the client_secret is wrong")
        if call.get("grant_type") not in (None, "authorization_code"):
            raise RefusalError("invalid_grant_type", "only codes are exchanged")
        code = self._codes.get(call["code"])
        if code is None or code.used or self._state.clock.now() > code.until:
            raise RefusalError("invalid_code")
        if call.get("redirect_uri") != code.redirect_uri:
            raise RefusalError("bad_redirect_uri", "the redirect_uri differs from that of the code")
        code.used = True
        team = self._state.teams[code.team]
        return _token_answer(self._state, install(self._state, team, code.scopes), code)

    def _wrong(self, query: Mapping[str, str]) -> str | None:
        if query.get("client_id") != self._state.app.client_id:
            return "invalid_client_id"
        target = query.get("redirect_uri")
        if target and self.redirect_uris and not any(target.startswith(one) for one in self.redirect_uris):
            return "bad_redirect_uri"
        if not target and not self.redirect_uris:
            return "bad_redirect_uri"
        return None if query.get("scope") or query.get("user_scope") else "no_scopes"


def basic_credentials(header: str) -> Json:
    """Return the client id and secret of a Basic ``Authorization`` header; empty if there are none."""
    if not header.startswith("Basic "):
        return {}
    try:
        name, _, secret = base64.b64decode(header[6:], validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return {}
    return {"client_id": name, "client_secret": secret}


def all_scopes() -> set[str]:
    """Return all bot scopes of the methods, and those for mentions, commands and posting."""
    more = ("app_mentions:read", "chat:write.public", "chat:write.customize", "commands", "assistant:write")
    return {scope for method in methods().values() for scope in method.scopes} | set(more)


def install(state: State, team: Workspace, scopes: Iterable[str]) -> Grant:
    """Add the app's bot to a workspace if needed, and grant a new bot token."""
    if team.bot is None:
        known = next((user for user in team.users.values() if user.is_bot), None)
        team.bot = known or _new_bot(state, team)
        for chat in team.chats.values():
            if chat.name == "general":
                chat.members.add(team.bot.id)
    token = f"xoxb-{team.id}-{state.names.next('')}"
    grant = Grant(token=token, kind="bot", team=team.id, user=team.bot.id, scopes=set(scopes))
    state.tokens[token] = grant
    team.grants.append(grant)
    state.changes.bump()
    return grant


def uninstall(state: State, team: Workspace) -> None:
    """Remove the app as a user would: its tokens are revoked, and it receives two events."""
    bots = [grant.user for grant in team.grants if grant.kind == "bot" and grant.revoked is None]
    persons = [grant.user for grant in team.grants if grant.kind == "user" and grant.revoked is None]
    for grant in team.grants:
        grant.revoked = "account_inactive" if grant.kind == "bot" else "token_revoked"
    emit(state, team, {"type": "tokens_revoked", "tokens": {"oauth": persons, "bot": bots[:1]}})
    emit(state, team, {"type": "app_uninstalled"})
    for chat in team.chats.values():
        if team.bot is not None and not chat.direct:
            chat.members.discard(team.bot.id)
    team.bot = None
    state.changes.bump()


def _new_bot(state: State, team: Workspace) -> User:
    bot = User(
        id=state.names.next("U"),
        team=team.id,
        name=state.app.name,
        real_name=state.app.name.title(),
        is_bot=True,
        bot_id=state.names.next("B"),
    )
    team.users[bot.id] = bot
    return bot


def _token_answer(state: State, grant: Grant, code: Code) -> Json:
    team = state.teams[code.team]
    person: Json = {"id": code.user}
    if code.user_scopes:
        token = f"xoxp-{team.id}-{state.names.next('')}"
        theirs = Grant(token=token, kind="user", team=team.id, user=code.user, scopes=set(code.user_scopes))
        state.tokens[token] = theirs
        team.grants.append(theirs)
        person |= {"scope": ",".join(code.user_scopes), "access_token": token, "token_type": "user"}
    return {
        "access_token": grant.token,
        "token_type": "bot",
        "scope": ",".join(code.scopes),
        "bot_user_id": grant.user,
        "app_id": state.app.id,
        "team": {"name": team.name, "id": team.id},
        "enterprise": None,
        "is_enterprise_install": False,
        "authed_user": person,
    }


def _split(scopes: str | None) -> tuple[str, ...]:
    return tuple(one.strip() for one in (scopes or "").split(",") if one.strip())


def _joined(target: str, more: Mapping[str, str]) -> str:
    parts = urlsplit(target)
    query = urlencode([*parse_qsl(parts.query), *more.items()])
    return parts._replace(query=query).geturl()


def auth_test(call: Call) -> Json:
    """``auth.test``: describe the account of a token."""
    if call.grant.kind == "app":
        return {"app_name": call.state.app.name, "app_id": call.state.app.id}
    team = call.team
    user = team.users[call.grant.user]
    answer = {
        "url": f"https://{team.name}.slack.example/",
        "team": team.name,
        "user": user.name,
        "team_id": team.id,
        "user_id": user.id,
        "is_enterprise_install": False,
    }
    return {**answer, "bot_id": user.bot_id} if user.bot_id else answer


def auth_revoke(call: Call) -> Json:
    """``auth.revoke``: revoke the token, and send its event."""
    if call.get("test"):
        return {"revoked": False}
    call.grant.revoked = "token_revoked"
    key = "bot" if call.grant.kind == "bot" else "oauth"
    emit(call.state, call.team, {"type": "tokens_revoked", "tokens": {key: [call.grant.user]}})
    return {"revoked": True}


def user_info(call: Call) -> Json:
    """``users.info``."""
    user = call.team.users.get(call["user"])
    if user is None:
        raise RefusalError("user_not_found")
    answer = user_object(call.state, user)
    return {"user": {**answer, "locale": "en-US"} if call.get("include_locale") else answer}


def users_list(call: Call) -> Json:
    """``users.list``."""
    rows = [user_object(call.state, user) for user in call.team.users.values()]
    return {**page_of(call, "members", rows, 1000), "cache_ts": call.state.stamps.seconds()}


def bot_info(call: Call) -> Json:
    """``bots.info``."""
    bot = call.team.bot
    if bot is None or call.get("bot", bot.bot_id) != bot.bot_id:
        raise RefusalError("bot_not_found")
    answer: Json = {"id": bot.bot_id, "deleted": False, "name": bot.name, "updated": 1, "icons": {}}
    return {"bot": {**answer, "app_id": call.state.app.id, "user_id": bot.id}}


def team_info(call: Call) -> Json:
    """``team.info``, for the workspace of the token only."""
    team = call.team
    if call.get("team", team.id) != team.id:
        raise RefusalError("team_not_found")
    answer: Json = {"id": team.id, "name": team.name, "domain": team.name, "email_domain": "", "icon": {}}
    return {"team": {**answer, "url": f"https://{team.name}.slack.example/", "is_verified": False}}


def user_groups_list(call: Call) -> Json:
    """``usergroups.list``."""
    groups = call.team.user_groups.values()
    return {"usergroups": [user_group_object(one) for one in groups if not one.disabled]}


def user_group_members(call: Call) -> Json:
    """``usergroups.users.list``."""
    group = call.team.user_groups.get(call["usergroup"])
    if group is None or (group.disabled and not call.get("include_disabled")):
        raise RefusalError("no_such_subteam")
    return {"users": list(group.users)}


def user_group_object(group: UserGroup) -> Json:
    """Return a user group as an object of the Web API."""
    return {
        "id": group.id,
        "team_id": group.team,
        "is_usergroup": True,
        "is_subteam": True,
        "name": group.handle.title(),
        "description": "",
        "handle": group.handle,
        "is_external": False,
        "date_create": 1,
        "date_update": 1,
        "date_delete": int(group.disabled),
        "auto_type": None,
        "prefs": {"channels": [], "groups": []},
        "user_count": len(group.users),
    }


def user_object(state: State, user: User) -> Json:
    """Return a user as an object of the Web API."""
    profile = {
        "real_name": user.real_name,
        "real_name_normalized": user.real_name,
        "display_name": user.display_name,
        "display_name_normalized": user.display_name,
        "status_text": "",
        "status_emoji": "",
        "avatar_hash": "",
        "image_72": f"{state.url}/icon-72.png",
        "team": user.team,
    }
    return {
        "id": user.id,
        "team_id": user.team,
        "name": user.name,
        "real_name": user.real_name,
        "deleted": False,
        "tz": "Europe/London",
        "tz_label": "Greenwich Mean Time",
        "tz_offset": 0,
        "profile": {**profile, **({"bot_id": user.bot_id} if user.bot_id else {})},
        "is_admin": False,
        "is_owner": False,
        "is_restricted": False,
        "is_ultra_restricted": False,
        "is_bot": user.is_bot,
        "is_app_user": False,
        "updated": 1,
    }
