"""Invented mistakes in settings: each is reported by ``config check``, with what to correct."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

import plugins
from gateway.cli import app

TOKEN = "123456789:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw"
LONG = "an-Owner-with-32-characters-0123456789"
DISCORD = "[channels.discord]\ntoken = 'a.b.c'\n"
MAIL = """[channels.email]
address = "bot@example.org"
imap_host = "imap.example.org"
smtp_host = "smtp.example.org"
password = "p"
"""
MATRIX = "[channels.matrix]\nhomeserver = 'https://matrix.example.org'\naccess_token = 't'\n"

REFUSED = {
    "unknown top-level key": ('modle = "openai/x"', "did you mean model"),
    "unknown channel": ("[channels.telegramm]", "there is no such channel; did you mean telegram?"),
    "missing plugin": ('plugins.enabled = ["wether"]', "plugin 'wether' cannot be loaded"),
    "missing plugin file": ('plugins.enabled = ["./wether.py"]', "cannot be loaded: FileNotFoundError"),
    "broken plugin file": ('plugins.enabled = ["broken.py"]', "cannot be loaded: SyntaxError"),
    "wrong value of a plugin": (
        'plugins.enabled = ["reminders"]\n[plugins.reminders]\nzone = "Mars"',
        'own.toml:3: plugins.reminders.zone = "Mars" is not a time zone; write one such as "Europe/Oslo"',
    ),
    "misspelled key of a plugin": (
        'plugins.enabled = ["reminders"]\n[plugins.reminders]\nzones = "UTC"',
        "plugins.reminders.zones is not a setting; did you mean plugins.reminders.zone?",
    ),
    "wrong value in a table of a plugin": (
        'plugins.enabled = ["cli_backends"]\n[plugins.cli_backends.plugins.codex]\nmaxConcurrency = 0',
        "own.toml:3: plugins.cli_backends.plugins.codex.max_concurrency = 0 must be greater than 0",
    ),
    "wrong value that a validator quotes": (
        'plugins.enabled = ["strict.py"]\n[plugins.strict]\npassword = "secret-password"',
        "plugins.strict.password cannot be **********",
    ),
    "key that a validator cannot check": (
        'plugins.enabled = ["strict.py"]\n[plugins.strict]\ncity = "Oslo"',
        "plugin 'strict.py' cannot validate its settings: KeyError: 'Oslo'",
    ),
    "unsupported store": ('store.url = "mysql://u:secret-password@db/x"', "'mysql' is not supported"),
    "store without a file": ('store.url = "sqlite://"', "needs a file"),
    "store that is no address": ('store.url = "trunkline.db"', "store.url is not a database address"),
    "folder of the gateway for an MCP server": (
        'data_dir = "/srv/none/data"\n[mcp.notes]\ncommand = ["notes"]\ncwd = "/srv/none/data"\n'
        'capabilities.filesystem.roots = ["/srv/none/../none/data"]',
        "mcp.notes.capabilities.filesystem.roots: /srv/none/../none/data has the data or the settings of the "
        "gateway, which are closed to programs",
    ),
    "missing token": ("[channels.telegram]", "channels.telegram.token is missing"),
    "webhook without its URL": (
        f'[channels.telegram]\ntoken = "{TOKEN}"\nmode = "webhook"',
        "channels.telegram: mode webhook needs webhook_url",
    ),
    "one path for two bots": (
        f'''[channels.telegram]
mode = "webhook"
webhook_url = "https://bot.example.org/telegram"
webhook_secret = "abc"
accounts.a.token = "{TOKEN}"
accounts.b.token = "2{TOKEN}"''',
        "channels.telegram.accounts.b: the path /telegram is also that of [channels.telegram.accounts.a]; "
        "set another one here",
    ),
    "one path for two platforms": (
        f'''[channels.slack]
mode = "http"
path = "/hook"
bot_token = "xoxb-1"
signing_secret = "0123456789abcdef0123456789abcdef"
[channels.telegram]
token = "{TOKEN}"
mode = "webhook"
webhook_url = "https://bot.example.org/hook"
webhook_secret = "abc"''',
        "channels.telegram: the path /hook is also that of [channels.slack]",
    ),
    "webhook without TLS": (
        f'''[channels.telegram]
token = "{TOKEN}"
mode = "webhook"
webhook_secret = "abc"
webhook_url = "http://bot.example.org/telegram"''',
        "webhook_url = 'http://bot.example.org/telegram': Telegram sends updates to https only",
    ),
    "webhook on another port": (
        f'''[channels.telegram]
token = "{TOKEN}"
mode = "webhook"
webhook_secret = "abc"
webhook_url = "https://bot.example.org:8080/telegram"''',
        "and to the ports 443, 80, 88 and 8443",
    ),
    "token that an account inherits": (
        f'''[channels.telegram]
token = "{TOKEN}"
accounts.a.agent = "main"
accounts.b.agent = "main"''',
        f"channels.telegram.accounts.b.token: {TOKEN.partition(':')[0]}:… is also that of "
        "[channels.telegram.accounts.a], and both would get its messages",
    ),
    "one Slack app for two accounts": (
        '''[channels.slack]
app_token = "xapp-1-A1-2-3"
accounts.a.bot_token = "xoxb-1"
accounts.b.bot_token = "xoxb-2"''',
        "channels.slack.accounts.b.app_token: xapp-1-A… is also that of [channels.slack.accounts.a]",
    ),
    "one folder for two mail accounts": (
        '''[channels.email]
imap_host = "imap.example.org"
smtp_host = "smtp.example.org"
password = "p"
username = "bots"
accounts.a.address = "a@example.org"
accounts.b.address = "b@example.org"''',
        "channels.email.accounts.b.folder: 'INBOX' of bots at imap.example.org is also that of",
    ),
    "secret of Slack that signs nothing": (
        '[channels.slack]\nmode = "http"\nbot_token = "xoxb-1"\nsigning_secret = "xoxb-1"',
        "channels.slack.signing_secret: is not a signing secret, which has 32 hexadecimal digits",
    ),
    "installation without TLS": (
        '''[channels.slack]
app_token = "xapp-1"
client_id = "1"
client_secret = "s"
redirect_url = "http://bot.example.org/x"''',
        "channels.slack.redirect_url: 'http://bot.example.org/x' must begin with https://",
    ),
    "mail address with capital letters": (
        f'{MAIL}allow = ["Ada@example.com"]',
        "channels.email.allow: 'Ada@example.com' has to be in lower case: 'ada@example.com'",
    ),
    "name of a mail user": (f'{MAIL}admins = ["ada"]', "admins: 'ada' is not the mail address of a user"),
    "mail room in another order": (
        f'{MAIL}rooms."b@x.org,a@x.org".agent = "main"',
        "'b@x.org,a@x.org' has to be in order: 'a@x.org,b@x.org'",
    ),
    "name of a Matrix user": (
        f'{MATRIX}allow = ["ada"]',
        "channels.matrix.allow: 'ada' is not the id of a user, such as @ada:example.org",
    ),
    "alias of a Matrix room": (
        f'{MATRIX}rooms."#team:example.org".agent = "main"',
        "'#team:example.org' is not the id of a room, such as !abc:example.org",
    ),
    "blank address of the store": ('store.url = ""', 'own.toml:1: store.url = "" must not be blank'),
    "blank data directory": ('data_dir = ""', 'own.toml:1: data_dir = "" must not be blank'),
    "blank token": ('[channels.telegram]\ntoken = " "', "must not be blank"),
    "token of another kind": ('[channels.telegram]\ntoken = "abc"', "must be a bot's token"),
    "missing token of an account": ("[channels.telegram.accounts.sales]", "channels.telegram"),
    "missing Discord token": ("[channels.discord]", "channels.discord.token: is missing"),
    "Discord token with a blank": ('[channels.discord]\ntoken = "a b"', "must not contain blanks"),
    "Discord token with Bot before it": (
        '[channels.discord]\ntoken = "Bot a.b.c"',
        "channels.discord.token: must be the token alone, without the word Bot",
    ),
    "another secret of Discord's pages": (
        f'[channels.discord]\ntoken = "{"0a" * 16}"',
        "channels.discord.token: must be a bot's token, three parts with dots between them; the page Bot",
    ),
    "name of a Discord user": (
        f'{DISCORD}allow = ["ada"]',
        "channels.discord.allow: 'ada' is not the id of a user, which has digits only",
    ),
    "name of a Discord role": (f'{DISCORD}admins = ["role:team"]', "admins: 'role:team' is not the id"),
    "name of a Discord channel": (
        f"{DISCORD}rooms.general.enabled = false",
        "channels.discord.rooms.\"general\": 'general' is not the id of a channel",
    ),
    "name in the list of a Discord channel": (
        f'{DISCORD}rooms.1.allow = ["ada"]',
        "channels.discord.rooms.\"1\".allow: 'ada' is not the id of a user",
    ),
    "name of a Telegram user": (
        f'[channels.telegram]\ntoken = "{TOKEN}"\nallow = ["ada"]',
        "channels.telegram.allow: 'ada' is not the id of a user, which is a number",
    ),
    "name of a Slack user": (
        '[channels.slack]\nbot_token = "xoxb-1"\napp_token = "xapp-1"\nallow = ["ada"]',
        "channels.slack.allow: 'ada' is not the id of a user, such as U0123456789",
    ),
    "missing Slack token": ("[channels.slack]", "channels.slack.bot_token: is missing"),
    "missing Slack app token": ('[channels.slack]\nbot_token = "xoxb-1"', "app_token: is missing"),
    "Slack token of a user": (
        '[channels.slack]\nbot_token = "xoxp-1"\napp_token = "xapp-1"',
        "channels.slack.bot_token: is a token of another kind; it must begin with xoxb-",
    ),
    "Slack token in the wrong place": (
        '[channels.slack]\nbot_token = "xoxb-1"\napp_token = "xoxb-1"',
        "channels.slack.app_token: is a token of another kind; it must begin with xapp-",
    ),
    "RabbitMQ by HTTP": ('cluster.url = "http://x"', 'cluster.url = "http://x" must look like "amqps://'),
    "short token behind a proxy": (
        'server.token = "short"\nserver.trusted_proxies = ["127.0.0.1"]',
        'server.trusted_proxies = ["127.0.0.1"] lets others in, so server.token must have at least 32',
    ),
    "short token for a public page": (
        'server.token = "short"\nserver.allowed_origins = ["https://bot.example.org"]',
        "so server.token must have at least 32 characters",
    ),
    "no token for a public page": (
        'server.allowed_origins = ["http://localhost:3000", "https://bot.example.org"]',
        'server.allowed_origins = ["http://localhost:3000", "https://bot.example.org"] lets others in, so '
        "server.token must have at least 32 characters",
    ),
    "public name without its scheme": (
        'server.allowed_origins = ["bot.example.org"]',
        "'bot.example.org' is not an origin, such as https://bot.example.org",
    ),
    "any origin": (
        f'server.token = "{LONG}"\nserver.allowed_origins = ["https://*"]',
        "'https://*' is not an origin",
    ),
    "origin of every file": (
        f'server.token = "{LONG}"\nserver.allowed_origins = ["null"]',
        "'null' is not an origin",
    ),
    "misspelled allow": (
        f'[channels.telegram]\ntoken = "{TOKEN}"\nalow = ["1"]',
        "did you mean channels.telegram.allow?",
    ),
    "misspelled admins": (
        f'[channels.telegram]\ntoken = "{TOKEN}"\nadmin = ["1"]',
        "did you mean channels.telegram.admins?",
    ),
    "misspelled key of a channel": (
        f'[channels.telegram]\ntoken = "{TOKEN}"\ngroup = "always"',
        "did you mean channels.telegram.groups?",
    ),
    "key of a channel without keys": (
        '[channels.websocket]\ncolour = "red"',
        "channels.websocket.colour is not a setting",
    ),
    "misspelled key of an account": (
        f'[channels.telegram.accounts.a]\ntoken = "{TOKEN}"\nalow = ["1"]',
        "accounts.a.allow?",
    ),
    "unknown choice": (
        f'[channels.telegram]\ntoken = "{TOKEN}"\ngroups = "sometimes"',
        "'command', 'reply', 'mention' or 'always'",
    ),
    "webhook without an address": (
        f'[channels.telegram]\ntoken = "{TOKEN}"\nmode = "webhook"',
        "needs webhook_url",
    ),
    "a name where ids belong": (f'[channels.telegram]\ntoken = "{TOKEN}"\nallow = ["@ada"]', "must hold ids"),
    "token that is a number": (
        "[channels.telegram]\ntoken = 123456789",
        "channels.telegram.token must be text in quotes, not a number",
    ),
    "wrong type": ('server.port = "eighty"', "a whole number"),
    "port out of range": ("server.port = 70000", "less than or equal to 65535"),
    "no duration": ('stream_timeout_ms = "soon"', "text with a unit"),
    "unset variable": ('[providers.openai]\napi_key = "${NOT_SET_ANYWHERE}"', "NOT_SET_ANYWHERE"),
    "missing file": ('system_prompt = "{file:gone.md}"', "gone.md"),
    "open to all without a token": ('server.host = "0.0.0.0"', "server.token must have at least 32"),
    "token of one character": (f'[server]\nhost = "0.0.0.0"\ntoken = "{"a" * 40}"', "8 different characters"),
    "unknown tool": ('permissions.calculater = "ask"', "did you mean calculator?"),
    "unknown action": ('permissions.calculator = "maybe"', "'allow', 'ask' or 'deny'"),
    "unknown role": ("permissions.'calculator@boss' = 'ask'", "the suffix after @ must be"),
    "patterns without anything to match": (
        'permissions.utc_time = { "1*" = "ask" }',
        "does not support glob rules",
    ),
    "unknown agent of a channel": ('channels.websocket.agent = "keper"', "is not an agent"),
    "unknown provider": ('[providers.opnai]\napi_key = "k"', "did you mean openai"),
    "like an unknown provider": ('[providers.own]\nlike = "opnai"', "did you mean openai"),
}
"""Mistakes that keep the gateway, or one of its parts, from starting: exit status 2."""

TOLD = {
    "seconds for milliseconds": ("[fetch]\ntimeout = 30", '"30s" for seconds'),
    "seconds in a variable's place": ("stream_timeout_ms = 60", '"60s" for seconds'),
    "seconds for a provider": ("[providers.openai]\ntimeout = 30", '"30s" for seconds'),
    "seconds for a hook": ("[plugins.tools]\nhook_timeout_ms = 2", '"2s" for seconds'),
    "settings of a plugin that is not enabled": (
        "[plugins.wether]\ncity = 'Oslo'",
        "the plugin is not enabled",
    ),
    "disabled plugin that is none": ('plugins.disabled = ["tols"]', "did you mean tools?"),
    "optional plugin that is missing": (
        'plugins.enabled = [{ name = "gone", optional = true }]',
        "cannot be loaded",
    ),
    "model of a misspelled provider": ('model = "opnai/gpt-5"', "did you mean openai?"),
    "model that its provider does not have": (
        'model = "openai/gpt-nonsense"\nproviders.openai.api_key = "k"',
        "model: 'openai/gpt-nonsense': the list of models that came with this version does not have it",
    ),
    "misspelled model": (
        'model = "openai/gpt-5.4-mimi"\nproviders.openai.api_key = "k"',
        "did you mean openai/gpt-5.4-mini",
    ),
    "model of a provider without a key": (
        'agents.a.model = "groq/openai/gpt-oss-120b"',
        "agents.a.model: 'groq/openai/gpt-oss-120b': the provider groq has no key here",
    ),
    "model of a provider that is none": (
        'model = "zebra/gpt"',
        "model: 'zebra/gpt' names no provider, and no provider is known to have such a model",
    ),
    "model without a provider": ('aliases.fast = "gpt-nonsense"', "aliases.fast: 'gpt-nonsense' names no"),
    "fallback of a misspelled provider": ('fallback = ["antropic"]', "did you mean anthropic?"),
}
"""What the gateway starts with, although it is hardly meant: exit status 0, and a warning."""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("why", ""), "ID is empty"),
        (("dead", "show", ""), "it is empty"),
        (("dead", "drop", "1", " "), "it is empty"),
        (("approvals", "revoke", ""), "it is empty"),
        (("pair", "approve", ""), "it is empty"),
        (("pair", "revoke", "telegram", ""), "it is empty"),
        (("slack", "manifest", "--url", "foo"), "'foo' is not a public https address"),
        (("slack", "manifest", "--url", "http://bot.example.org"), "is not a public https address"),
    ],
)
def test_an_argument_that_cannot_be_meant_is_refused(words: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(app, [*words])
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr


STRICT = """
from pydantic import BaseModel, field_validator
from gateway import Plugin

class StrictSettings(BaseModel):
    password: str = ""
    city: str = ""

    @field_validator("password")
    @classmethod
    def _refused(cls, password):
        raise ValueError("cannot be " + password)

    @field_validator("city")
    @classmethod
    def _looked_up(cls, city):
        return {}[city]

class Strict(Plugin):
    name = "strict"
    settings_model = StrictSettings

plugin = Strict()
"""
"""A plugin outside the tree whose model refuses every password and fails for every city."""

SHARED = ("programs",)
"""Packages that plugins share; they are none."""
SHIPPED = sorted(
    name.stem if name.suffix else name.name
    for name in Path(plugins.__file__).parent.iterdir()
    if not name.name.startswith(("_", *SHARED)) and (name.suffix == ".py" or (name / "__init__.py").exists())
)


def checked(home: Path, text: str) -> tuple[int, str]:
    """Check settings. Returns the exit status and what is said."""
    (home / "broken.py").write_text("this is no Python")
    (home / "strict.py").write_text(STRICT)
    (home / "own.toml").write_text(text + "\n")
    others = (name for name in os.environ if name.startswith("TRUNKLINE_") or name.endswith("_API_KEY"))
    keys: dict[str, str | None] = dict.fromkeys(others)
    done = CliRunner(env=keys).invoke(app, ["config", "check", "--config", str(home / "own.toml")])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


@pytest.mark.parametrize("mistake", REFUSED)
def test_a_mistake_that_stops_a_part_is_refused(tmp_path: Path, mistake: str) -> None:
    text, said = REFUSED[mistake]
    status, output = checked(tmp_path, text)
    assert (status, said in output) == (2, True), output
    assert "secret-password" not in output
    assert "Traceback" not in output


@pytest.mark.parametrize("plugin", SHIPPED)
def test_an_unknown_key_of_a_shipped_plugin_is_refused(tmp_path: Path, plugin: str) -> None:
    table = f'plugins.enabled = ["{plugin}"]\n[plugins.{plugin}]\n'
    status, output = checked(tmp_path, f"{table}colour = 1")
    assert (status, f"own.toml:3: plugins.{plugin}.colour is not a setting" in output) == (2, True), output
    status, output = checked(tmp_path, f"{table}optional = true\ncolour = 1")
    assert (status, f"plugins.{plugin}.colour is not a setting" in output) == (0, True), output


@pytest.mark.parametrize("mistake", TOLD)
def test_a_mistake_that_stops_nothing_is_a_warning(tmp_path: Path, mistake: str) -> None:
    text, said = TOLD[mistake]
    status, output = checked(tmp_path, text)
    assert (status, said in output) == (0, True), output


@pytest.mark.parametrize(
    "text",
    [
        "",
        f'[channels.telegram]\ntoken = "{TOKEN}"\nallow = ["1"]\nadmins = ["1"]\ngroups = "always"',
        "[channels.telegram]\nenabled = false",
        f'{MAIL}allow = ["ada@x.org"]\nrooms."a@x.org,b@x.org".allow = "*"\naliases = ["Help@x.org"]',
        f'{MATRIX}allow = ["@ada:x.org:8448"]\nrooms."!31hneApxJ_1o".groups = "reply"',
        f'{DISCORD}allow = [123456789012345678, "role:1"]\nrooms.1.allow = "*"',
        '[channels.websocket]\nagent = "plan"',
        'server.allowed_origins = ["http://localhost:3000", "tauri://localhost", "http://[::1]:1/"]',
        f'server.allowed_origins = ["https://bot.example.org"]\nserver.tokens.ops.token = "{LONG}"',
        'stream_timeout_ms = "900ms"\n[fetch]\ntimeout = "30s"',
        '[permissions]\ncalculator = "ask"\n"claude-code:Bash" = "deny"\n"*" = "ask"',
        'model = "groq/openai/gpt-oss-120b"\nfallback = ["openai"]\n[plugins.tools]\ntool_timeout_ms = 5000\n'
        + "".join(f"[providers.{name}]\napi_key = 'k'\n" for name in ("groq", "openai")),
        'model = "fast"\naliases.fast = "local/anything"\nfallback = ["gpt-5.4-mini"]',
        'model = "mine/anything"\n[providers.mine]\nlike = "openai"\nbase_url = "http://127.0.0.1:1/v1"',
        'model = "openai/new-model"\n[providers.openai]\napi_key = "k"\nmodels = ["new-model"]',
        'model = "azure/my-deployment"\nproviders.azure.api_key = "k"',
        'model = "mine/my-deployment"\n[providers.mine]\nlike = "azure"\napi_key = "k"',
        'plugins.enabled = ["cli_backends"]\nmodel = "claude-code/opus"',
        'plugins.enabled = ["mine.py"]\n[plugins.mine]\ncity = "Oslo"',
    ],
)
def test_right_settings_get_no_word(tmp_path: Path, text: str) -> None:
    (tmp_path / "mine.py").write_text(
        "from gateway import Plugin\nclass Mine(Plugin):\n    name = 'mine'\nplugin = Mine()\n"
    )
    status, output = checked(tmp_path, text)
    assert (status, output.count("\n")) == (0, 1), output


def test_the_file_of_a_plugin_is_beside_the_settings_file_that_lists_it(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/mine.py").write_text(
        "from gateway import Plugin\nclass Mine(Plugin):\n    name = 'mine'\nplugin = Mine()\n"
    )
    config = tmp_path / "etc/own.toml"
    config.write_text('plugins.enabled = ["mine.py"]\n')
    done = CliRunner().invoke(app, ["config", "check", "--config", str(config)])
    assert done.exit_code == 0, done.output
