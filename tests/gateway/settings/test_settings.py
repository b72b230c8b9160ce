"""Settings: where they come from, which wins, and what is said when one is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import pytest
from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError

from gateway.contract.errors import SettingsError
from gateway.settings import Settings, load_settings
from gateway.settings.sections import effective

TOKEN = "0123456789abcdef0123456789abcdef"


class Load(Protocol):
    def __call__(
        self, text: str = "", *, flags: Mapping[str, Any] | None = None, **environ: str
    ) -> Settings: ...


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Load settings as in a working directory whose ``config/trunkline.toml`` holds the text."""

    def loading(text: str = "", *, flags: Mapping[str, Any] | None = None, **environ: str) -> Settings:
        write(tmp_path / "config/trunkline.toml", text)
        return load_settings(flags=flags, environ=environ, cwd=tmp_path)

    return loading


@pytest.fixture
def refused(load: Load) -> Callable[..., str]:
    """Load settings that are wrong, and give what is said about them."""

    def refusing(text: str = "", **environ: str) -> str:
        with pytest.raises(SettingsError) as caught:
            load(text, flags=None, **environ)
        return str(caught.value)

    return refusing


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


# Sources


def test_nothing_has_to_be_set(tmp_path: Path):
    settings = load_settings(environ={}, cwd=tmp_path)
    assert (settings.server.host, settings.server.port, settings.server.token) == ("127.0.0.1", 8080, None)
    assert settings.channels["websocket"].enabled
    assert settings.store_url == "sqlite:///data/trunkline.db"
    assert settings.model_dump() == Settings().model_dump()


def test_each_source_wins_over_the_one_before(tmp_path: Path):
    home = tmp_path / "home"
    write(
        home / ".config/trunkline/trunkline.toml",
        "max_tokens = 1\nhistory_window = 1001\n[server]\nport = 1\n",
    )
    write(tmp_path / "config/trunkline.toml", "history_window = 1002\n[server]\nport = 2\n")
    settings = load_settings(
        flags={"server": {"port": 4, "host": None}},
        environ={"HOME": str(home), "TRUNKLINE_SERVER__PORT": "3", "TRUNKLINE_LIMITS__MAX_ATTEMPTS": "3"},
        cwd=tmp_path,
    )
    assert (settings.max_tokens, settings.history_window) == (1, 1002)
    assert (settings.limits.max_attempts, settings.server.port) == (3, 4)


def test_the_personal_file_follows_xdg_config_home(tmp_path: Path):
    write(tmp_path / "xdg/trunkline/trunkline.toml", "max_tokens = 7")
    environ = {"XDG_CONFIG_HOME": str(tmp_path / "xdg"), "HOME": "/nowhere"}
    assert load_settings(environ=environ, cwd=tmp_path).max_tokens == 7


@pytest.mark.parametrize("by_variable", [False, True])
def test_a_named_file_is_read_instead_of_the_usual_ones(tmp_path: Path, by_variable: bool):
    write(tmp_path / "config/trunkline.toml", "max_tokens = 1\nhistory_window = 1001")
    named = write(tmp_path / "mine.toml", "max_tokens = 2")
    environ = {"TRUNKLINE_CONFIG": "mine.toml"} if by_variable else {}
    settings = load_settings(None if by_variable else named, environ=environ, cwd=tmp_path)
    assert (settings.max_tokens, settings.history_window) == (2, 32_000)


def test_a_named_file_that_is_not_there_is_an_error(tmp_path: Path):
    with pytest.raises(SettingsError, match=r"mine\.toml: cannot be read: No such file"):
        load_settings(Path("mine.toml"), environ={}, cwd=tmp_path)


def test_two_files_side_by_side_are_refused(tmp_path: Path):
    write(tmp_path / "config/trunkline.toml", "")
    write(tmp_path / "config/trunkline.json", "{}")
    with pytest.raises(SettingsError, match="only one settings file is allowed"):
        load_settings(environ={}, cwd=tmp_path)


@pytest.mark.parametrize("suffix", ["json", "jsonc", "json5"])
def test_004_T19_json_may_have_comments_and_trailing_commas(tmp_path: Path, suffix: str):
    text = '{\n // "port: 1"\n "server": {"port": 9, /* "host": "x" */ },\n "maxTokens": 5,\n}'
    write(tmp_path / f"config/trunkline.{suffix}", text)
    settings = load_settings(environ={}, cwd=tmp_path)
    assert (settings.server.port, settings.max_tokens) == (9, 5)


@pytest.mark.parametrize("suffix", ["toml", "json"])
def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path, suffix: str):
    text = "[server]\r\nport = 81\r\n" if suffix == "toml" else '{"server": {"port": 81}}'
    write(tmp_path / f"config/trunkline.{suffix}", "\ufeff" + text)
    assert load_settings(environ={}, cwd=tmp_path).server.port == 81


def test_a_secret_of_a_file_has_no_byte_order_mark(load: Load, tmp_path: Path):
    write(tmp_path / "token.txt", "\ufeff" + TOKEN + "\r\n")
    given = load(f'server.token = "{{file:{tmp_path}/token.txt}}"').server.token
    assert given is not None
    assert given.get_secret_value() == TOKEN


def test_004_T19_tables_merge_and_values_replace(tmp_path: Path):
    home = tmp_path / "xdg"
    write(
        home / "trunkline/trunkline.toml",
        '[providers.a]\nbase_url = "http://a"\nmodels = ["x"]\ntimeout = 5',
    )
    write(
        tmp_path / "config/trunkline.toml",
        '[providers.a]\nmodels = ["y"]\n[providers.b]\n[channels.telegram]',
    )
    settings = load_settings(environ={"XDG_CONFIG_HOME": str(home)}, cwd=tmp_path)
    assert (settings.providers["a"].models, settings.providers["a"].timeout) == (("y",), 5)
    assert set(settings.providers) == {"a", "b"}
    assert set(settings.channels) == {"websocket", "telegram"}


def test_004_T19_plugin_lists_grow_without_repeats(load: Load):
    settings = load('[plugins]\nenabled = ["a", "b"]', TRUNKLINE_PLUGINS__ENABLED='["b", "c"]')
    assert settings.plugins.enabled == ("a", "b", "c")


def test_a_table_may_replace_a_value_and_a_value_a_table(tmp_path: Path):
    write(tmp_path / "config/trunkline.toml", '[permissions]\nshell = "ask"\ngit = { push = "deny" }')
    flags = {"permissions": {"shell": {"ls *": "allow"}, "git": "allow"}}
    settings = load_settings(flags=flags, environ={}, cwd=tmp_path)
    assert settings.permissions == {"shell": {"ls *": "allow"}, "git": "allow"}


def test_variables_reach_every_depth(load: Load):
    settings = load(
        TRUNKLINE_MODEL="openai/gpt",
        TRUNKLINE_STEER="true",
        TRUNKLINE_PROVIDERS__LOCAL__BASE_URL="http://localhost:1",
        TRUNKLINE_PROVIDERS__LOCAL__CUSTOM_HEADERS='{"X-A": "b"}',
        TRUNKLINE_SERVER__ALLOWED_ORIGINS='["http://localhost:3000"]',
        TRUNKLINE_PLUGINS__NOTES__TAGS='["x"]',
    )
    assert (settings.model, settings.steer) == ("openai/gpt", True)
    assert settings.providers["local"].base_url == "http://localhost:1"
    assert settings.providers["local"].custom_headers["X-A"].get_secret_value() == "b"
    assert settings.server.allowed_origins == ("http://localhost:3000",)
    assert settings.plugins.of("notes").options == {"tags": ["x"]}


def test_variables_of_others_with_our_prefix_are_left_alone(load: Load):
    """A cluster gives every container variables like these for a service of our name."""
    load(TRUNKLINE_PORT="tcp://10.0.0.1:8080", TRUNKLINE_SERVICE_HOST="10.0.0.1", TRUNKLINE_PORT_8080_TCP="x")


def test_the_whole_is_read_only(load: Load):
    settings = load()
    with pytest.raises(ValidationError, match="frozen"):
        settings.model = "x"
    with pytest.raises(ValidationError, match="frozen"):
        settings.server.port = 1


# References


def test_028_references_are_replaced(load: Load, tmp_path: Path):
    write(tmp_path / "config/prompt.md", "Be kind.\n")
    settings = load(
        'system_prompt = "{file:prompt.md}"\n'
        '[server]\nport = "${PORT}"\n'
        '[providers.openai]\napi_key = "{env:KEY}"\nmodels = ["${A}-1"]\n',
        PORT="81",
        KEY="k",
        A="a",
    )
    assert (settings.system_prompt, settings.server.port) == ("Be kind.", 81)
    api_key = settings.providers["openai"].api_key
    assert api_key is not None
    assert (api_key.get_secret_value(), settings.providers["openai"].models) == ("k", ("a-1",))


def test_a_doubled_sign_stands_for_itself(load: Load):
    settings = load('system_prompt = "$${HOME} {{env:HOME} {{file:x} {x} $5"')
    assert settings.system_prompt == "${HOME} {env:HOME} {file:x} {x} $5"


@pytest.mark.parametrize("reference", ["${NOPE}", "{env:NOPE}"])
def test_a_missing_secret_is_an_error_with_a_way_out(refused: Callable[..., str], reference: str):
    said = refused(f'\n[providers.openai]\napi_key = "{reference}"')
    assert said == (
        "config/trunkline.toml:3: providers.openai.api_key needs the environment variable NOPE, which is not "
        "set; export NOPE=… before the start, or remove the line"
    )


def test_a_missing_file_is_an_error_with_its_path(refused: Callable[..., str], tmp_path: Path):
    said = refused('system_prompt = "{file:prompt.md}"')
    assert said.startswith(
        "config/trunkline.toml:1: system_prompt needs the file prompt.md, which cannot be read"
    )
    assert str(tmp_path / "config/prompt.md") in said


def test_a_reference_that_is_overruled_need_not_lead_anywhere(load: Load):
    assert load('model = "${NOPE}"', TRUNKLINE_MODEL="openai/gpt").model == "openai/gpt"


# Spelling


def test_camel_case_means_the_same(load: Load):
    settings = load(
        "maxTokens = 5\nstreamTimeoutMs = 6\n[server]\nallowedOrigins = ['http://localhost']\n"
        "[providers.myOwn]\nbaseURL = 'http://x'\nmaxRetries = 1\ncustomHeaders = { camelCase = 'kept' }\n"
        "[limits]\nmaxLLMCalls = 3\n"
    )
    assert (settings.max_tokens, settings.stream_timeout_ms, settings.server.allowed_origins) == (
        5,
        6,
        ("http://localhost",),
    )
    provider = settings.providers["myOwn"]
    assert (provider.base_url, provider.max_retries, set(provider.custom_headers)) == (
        "http://x",
        1,
        {"camelCase"},
    )
    assert settings.limits.max_llm_calls == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("temprature = 1", "config/trunkline.toml:1: temprature is not a setting; did you mean temperature?"),
        ("\n[servr]\nport = 1", "config/trunkline.toml:3: servr is not a setting; did you mean server?"),
        (
            "[server]\nprot = 1",
            "config/trunkline.toml:2: server.prot is not a setting; did you mean server.port?",
        ),
        ("port = 1", "config/trunkline.toml:1: port is not a setting; did you mean server.port?"),
        ("[log]\nmodel = 'x'", "config/trunkline.toml:2: log.model is not a setting; did you mean model?"),
        (
            "[log]\nzzz = 'x'",
            "config/trunkline.toml:2: log.zzz is not a setting; known keys: level, format, file, file_bytes",
        ),
        (
            "[providers.x]\napikey = 'x'",
            "config/trunkline.toml:2: providers.x.apikey is not a setting; did you mean providers.x.api_key?",
        ),
        (
            "[plugins]\nenabeld = ['x']",
            "config/trunkline.toml:2: plugins.enabeld is not a setting; did you mean plugins.enabled?",
        ),
    ],
)
def test_an_unknown_key_is_reported_with_the_nearest_right_one(
    refused: Callable[..., str], text: str, said: str
):
    assert refused(text) == said


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("TRUNKLINE_MODLE", "TRUNKLINE_MODEL"),
        ("TRUNKLINE_SERVER_PORT", "TRUNKLINE_SERVER__PORT"),
        ("TRUNKLINE_SERVR__PORT", "TRUNKLINE_SERVER__PORT"),
    ],
)
def test_a_mistyped_variable_is_reported(refused: Callable[..., str], name: str, meant: str):
    assert refused(**{name: "1"}) == f"{name}: is not a setting; did you mean {meant}?"


def test_an_unknown_key_in_a_table_of_variables_is_reported(refused: Callable[..., str]):
    said = refused(TRUNKLINE_SERVER__PROT="1")
    assert said == "TRUNKLINE_SERVER__PROT: server.prot is not a setting; did you mean server.port?"


def test_lines_are_right_after_strings_and_arrays_of_several_lines(refused: Callable[..., str]):
    said = refused(
        'system_prompt = """\n[server]\nprot = 1\n"""\n[server]\ntrusted_proxies = [\n "::1",\n]\nprot = 1\n'
    )
    assert said.startswith("config/trunkline.toml:9: server.prot")


def test_lines_are_right_in_json(tmp_path: Path):
    text = (
        '{\n // "prot": 0\n "system_prompt": "\\"prot\\": 1",\n "server": {\n  "port": [{}],\n  prot: 1\n }}'
    )
    write(tmp_path / "config/trunkline.json5", text)
    with pytest.raises(SettingsError, match=r"json5:6: server\.prot is not"):
        load_settings(environ={}, cwd=tmp_path)


# Values


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[server]\nport = 'eighty'",
            'config/trunkline.toml:2: server.port = "eighty" must be a whole number',
        ),
        (
            "[server]\nport = 99999",
            "config/trunkline.toml:2: server.port = 99999 must be less than or equal to 65535",
        ),
        ("steer = 'perhaps'", 'config/trunkline.toml:1: steer = "perhaps" must be true or false'),
        ("durability = 'weak'", "config/trunkline.toml:1: durability = \"weak\" must be 'full' or 'relaxed'"),
        ("server = 5", "config/trunkline.toml:1: server = 5 must be a table"),
        (
            "[plugins]\nenabled = 'x'",
            'config/trunkline.toml:2: plugins.enabled = "x" must be a list, like ["a", "b"]',
        ),
        (
            "[permissions]\nshell = 'maybe'",
            'config/trunkline.toml:2: permissions.shell = "maybe" '
            "must be 'allow', 'ask' or 'deny' or a table",
        ),
    ],
)
def test_a_wrong_value_is_reported_with_what_is_allowed(refused: Callable[..., str], text: str, said: str):
    assert refused(text) == said


def test_everything_wrong_is_reported_at_once(refused: Callable[..., str]):
    said = refused("tempo = 1\nmax_tokens = 0\n[server]\nport = 'x'", TRUNKLINE_LOG__LEVEL="loud")
    first, *lines = said.splitlines()
    assert first == "4 settings are wrong:"
    assert [line.split(": ")[0].strip() for line in lines] == [
        "config/trunkline.toml:1",
        "config/trunkline.toml:2",
        "config/trunkline.toml:4",
        "TRUNKLINE_LOG__LEVEL",
    ]


def test_a_listener_beyond_this_machine_needs_a_long_token(refused: Callable[..., str], load: Load):
    for token in ("", "token = 'short'"):
        assert "server.token must have at least 32 characters" in refused(
            f"[server]\nhost = '0.0.0.0'\n{token}"
        )
    assert load(f"[server]\nhost = '0.0.0.0'\ntoken = '{TOKEN}'").server.host == "0.0.0.0"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.9.1"])
def test_a_listener_on_this_machine_needs_none(load: Load, host: str):
    assert load(f"[server]\nhost = '{host}'").server.token is None


def test_a_blank_secret_is_an_error(refused: Callable[..., str]):
    said = refused(
        "[providers.y]\napi_keys = ['a', ' ']",
        TRUNKLINE_SERVER__TOKEN=" ",
        TRUNKLINE_PROVIDERS__X__API_KEY="",
    )
    assert "providers.y.api_keys must not be blank" in said
    assert "TRUNKLINE_SERVER__TOKEN: server.token must not be blank" in said
    assert "TRUNKLINE_PROVIDERS__X__API_KEY: providers.x.api_key must not be blank" in said


@pytest.mark.parametrize(
    ("suffix", "text", "place"),
    [
        ("toml", 'model = "x"\ntoken = "hunter2', "2:17"),
        ("toml", "[server\nport = 1", "1:8"),
        ("json", '{\n "token": "hunter2" "x"}', "2:21"),
    ],
)
def test_a_syntax_error_is_reported_by_line_and_column(tmp_path: Path, suffix: str, text: str, place: str):
    file = write(tmp_path / f"config/trunkline.{suffix}", text)
    with pytest.raises(SettingsError) as caught:
        load_settings(environ={}, cwd=tmp_path)
    assert str(caught.value).startswith(f"config/{file.name}:{place}: ")
    assert "hunter2" not in str(caught.value)


# Secrets


def test_no_secret_is_in_an_error(refused: Callable[..., str]):
    said = refused(
        "[server]\ntoken = ['hunter2']\nport = '${SECRET}'\n"
        "[providers.x]\napi_key = { a = 'hunter2' }\ntimeout = 'https://u:hunter2@x'\n"
        "custom_headers = { A = 5 }\n",
        SECRET="hunter2",
    )
    assert "hunter2" not in said
    assert "server.port = ${SECRET} must be" in said


def test_no_secret_is_in_the_repr_or_shown(load: Load):
    settings = load(
        f"[server]\ntoken = '{TOKEN}'\n[store]\nurl = 'postgresql://u:{TOKEN}@h/d'\n"
        f"[providers.x]\napi_key = '{TOKEN}'\napi_keys = ['a', '{TOKEN}', '${{T}}']\n"
        f"custom_headers = {{ A = '{TOKEN}' }}\n"
        f"[channels.telegram]\nbotToken = '{TOKEN}'\nother = '${{T}}'\n"
        f"[plugins.notes]\nsecret_key = '{TOKEN}'",
        T=TOKEN,
    )
    assert TOKEN not in repr(settings)
    assert TOKEN not in repr(effective(settings))


def test_a_secret_in_the_address_of_a_server_is_masked(load: Load):
    settings = load(
        f"[mcp.search]\nurl = 'https://h/mcp?tavilyApiKey={TOKEN}%3D&lang=en&token=t'\n"
        f"[providers.x]\nlike = 'openai'\nbase_url = 'https://u:{TOKEN}-p@h/v1?api-version=7&key={TOKEN}-k'\n"
    )
    shown = {row.key: row.value for row in effective(settings)}
    assert TOKEN not in repr(shown)
    assert shown["mcp.search.url"] == "https://h/mcp?tavilyApiKey=**********&lang=en&token=**********"
    assert shown["providers.x.base_url"] == "https://u:**********@h/v1?api-version=7&key=**********"
    assert {f"{TOKEN}=", f"{TOKEN}-p", f"{TOKEN}-k", "t"} <= set(settings.secrets())
    assert "en" not in settings.secrets()


def test_what_is_in_effect_says_where_it_was_written(load: Load):
    settings = load("[server]\nport = 1\n[plugins.notes]\nsize = '${N}'", N="5", TRUNKLINE_STEER="1")
    shown = {row.key: (row.value, row.source) for row in effective(settings)}
    assert shown["server.port"] == (1, "config/trunkline.toml:2")
    assert shown["steer"] == (True, "TRUNKLINE_STEER")
    assert shown["server.host"] == ("127.0.0.1", "default")
    assert shown["plugins.notes.size"] == ("${N}", "config/trunkline.toml:4")


# Who may talk


def test_the_users_of_a_channel_are_set_by_ids(load: Load):
    settings = load(
        "[channels.telegram]\nallow = [123, 'U7']\nadmins = ['9']\ntoken = 't'\n[channels.slack]\nallow = '*'"
    )
    rules = settings.rules("telegram")
    assert rules is not None
    assert (rules.allow, rules.admins) == (("123", "U7"), ("9",))
    assert settings.channels["telegram"].options == {"token": "t"}, "they are not the channel's own"
    slack = settings.rules("slack")
    assert slack is not None
    assert (slack.allow, slack.admins) == ("*", ())
    assert settings.rules("discord") is None


def test_an_account_s_rules_go_before_those_of_its_channel(load: Load):
    settings = load(
        "[channels.telegram]\nallow = ['1']\nadmins = ['9']\n"
        "[channels.telegram.accounts.sales]\nallow = '*'\nadmins = []\n"
        "[channels.telegram.accounts.support]\ntoken = 't'\n"
    )
    sales, support = settings.rules("telegram.sales"), settings.rules("telegram.support")
    assert sales is not None
    assert support is not None
    assert (sales.allow, sales.admins) == ("*", ())
    assert (support.allow, support.admins) == (("1",), ("9",))
    assert settings.rules("telegram.other") is None


def test_a_wrong_rule_of_an_account_is_reported_by_place(refused: Callable[..., str]):
    said = refused("[channels.telegram.accounts.sales]\nallow = 'ada'")
    assert said.startswith("config/trunkline.toml:2: channels.telegram.accounts.sales.allow")


def test_a_channel_is_closed_unless_the_settings_open_it(load: Load):
    rules = load("[channels.telegram]").rules("telegram")
    assert rules is not None
    assert (rules.allow, rules.admins) == ((), ())


def test_who_may_talk_can_come_from_variables(load: Load):
    settings = load(
        TRUNKLINE_CHANNELS__TELEGRAM__ALLOW='["1", 2]', TRUNKLINE_CHANNELS__TELEGRAM__ADMINS="[3]"
    )
    rules = settings.rules("telegram")
    assert rules is not None
    assert (rules.allow, rules.admins) == (("1", "2"), ("3",))


@pytest.mark.parametrize(
    "value", ['["@ada"]', '["Ada Lovelace"]', '[""]', '["*"]', "[true]", "[1.5]", '"ada"', "true", "5", "{}"]
)
@pytest.mark.parametrize("key", ["allow", "admins"])
def test_a_value_that_is_not_a_list_of_ids_allows_no_user(refused: Callable[..., str], key: str, value: str):
    said = refused(f"[channels.telegram]\n{key} = {value}")
    assert said.startswith(f"config/trunkline.toml:2: channels.telegram.{key}")


def test_a_star_cannot_be_an_admin(refused: Callable[..., str]):
    assert "channels.telegram.admins" in refused("[channels.telegram]\nadmins = '*'")


def test_a_rule_of_no_role_is_reported(refused: Callable[..., str], load: Load):
    said = refused("[permissions]\n'shell@admn' = 'deny'")
    assert "'shell@admn': the suffix after @ must be" in said
    assert load(
        "[permissions]\n'shell@admin' = 'allow'\n'*@user' = 'deny'\n'worker:shell' = 'ask'"
    ).permissions


# A channel's and a plugin's own settings


class TelegramSettings(BaseModel):
    model_config = ConfigDict(extra="forbid")

    bot_token: SecretStr
    poll_seconds: int = 30


def test_a_channel_reads_its_own_settings(load: Load):
    settings = load("[channels.telegram]\nbotToken = '${T}'\npoll_seconds = 5", T="t")
    own = settings.channel("telegram", TelegramSettings)
    assert (own.bot_token.get_secret_value(), own.poll_seconds) == ("t", 5)


def test_a_plugin_may_have_a_table_under_either_name(load: Load):
    by_file = '[plugins."./own.py"]\nbot_token = "a"\npoll_seconds = 5\n'
    own = load(f'{by_file}[plugins.own]\nbot_token = "b"\noptional = true').plugin(
        ["./own.py", "own"], TelegramSettings
    )
    assert (own.bot_token.get_secret_value(), own.poll_seconds) == ("b", 5)


def test_a_channel_s_own_mistakes_are_reported_by_place(load: Load):
    settings = load(
        "[channels.telegram]\nbot_token = 't'\npoll_secnds = 5\n[plugins.telegram]\npoll_seconds = 'x'"
    )
    with pytest.raises(SettingsError) as caught:
        settings.channel("telegram", TelegramSettings)
    assert str(caught.value) == (
        "config/trunkline.toml:3: channels.telegram.poll_secnds is not a setting; "
        "did you mean channels.telegram.poll_seconds?"
    )
    with pytest.raises(SettingsError) as caught:
        settings.plugin(["telegram"], TelegramSettings)
    assert "plugins.telegram.bot_token is missing" in str(caught.value)
    assert 'config/trunkline.toml:5: plugins.telegram.poll_seconds = "x" must be a whole number' in str(
        caught.value
    )


def test_settings_survive_json(load: Load):
    """What is shown is plain data, so that ``--json`` can print it."""
    assert json.dumps([row.value for row in effective(load("[permissions]\nshell = { 'a *' = 'ask' }"))])


def test_several_accounts_share_the_settings_beside_them_and_have_their_own(load: Load):
    settings = load(
        "[channels.telegram]\npoll_seconds = 5\n"
        "[channels.telegram.accounts.sales]\nbotToken = 'a'\n"
        "[channels.telegram.accounts.support]\nbot_token = 'b'\npoll_seconds = 7\n"
        "[channels.telegram.accounts.old]\nenabled = false\n"
    )
    assert settings.accounts("telegram") == ("sales", "support")
    sales, support = (settings.channel("telegram", TelegramSettings, name) for name in ("sales", "support"))
    assert (sales.bot_token.get_secret_value(), sales.poll_seconds) == ("a", 5)
    assert (support.bot_token.get_secret_value(), support.poll_seconds) == ("b", 7)
    assert settings.accounts("websocket") == (None,)


def test_a_mistake_in_an_account_is_reported_with_its_name(load: Load):
    settings = load("[channels.telegram.accounts.sales]\nbot_token = 'a'\npoll_secnds = 7\n")
    with pytest.raises(
        SettingsError, match=r"channels\.telegram\.accounts\.sales\.poll_secnds is not a setting"
    ):
        settings.channel("telegram", TelegramSettings, "sales")


def test_a_quoted_key_is_reported_as_it_is_written(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text('[models."openai/gpt-5.4"]\ntolls = true\nimages = "x"\n')
    with pytest.raises(SettingsError) as caught:
        load_settings(file, environ={}, cwd=tmp_path)
    assert str(caught.value).splitlines()[1:] == [
        '  own.toml:2: models."openai/gpt-5.4".tolls is not a setting; '
        'did you mean models."openai/gpt-5.4".tools?',
        '  own.toml:3: models."openai/gpt-5.4".images = "x" must be true or false',
    ]


@pytest.mark.parametrize(
    ("written", "milliseconds"),
    [('"30s"', 30_000), ('"2m"', 120_000), ('"1.5 s"', 1_500), ('"250ms"', 250), ("5000", 5_000)],
)
def test_durations_may_have_units(load: Load, written: str, milliseconds: int):
    assert load(f"stream_timeout_ms = {written}").stream_timeout_ms == milliseconds


def test_durations_are_counted_in_the_unit_of_their_key(load: Load):
    limits = load('[limits]\ndrain_seconds = "1m"\nbacklog_minutes = "2h"\n').limits
    assert (limits.drain_seconds, limits.backlog_minutes) == (60, 120)
    assert load('[plugins.weather]\nhook_timeout_ms = "3s"').plugins.of("weather").hook_timeout_ms == 3_000
    assert load(TRUNKLINE_STREAM_TIMEOUT_MS="45s").stream_timeout_ms == 45_000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            'stream_timeout_ms = "soon"',
            'must be a whole number, or text with a unit (ms, s, m, h, d) like "30s"',
        ),
        ('stream_timeout_ms = "0s"', "must be greater than 0"),
        ('[limits]\nbacklog_minutes = "90s"', "must be a whole number of m"),
        ('[plugins.weather]\noptional = "perhaps"', "must be true or false"),
    ],
)
def test_a_duration_that_is_none_is_reported(refused: Callable[..., str], text: str, said: str):
    assert said in refused(text)


@pytest.mark.parametrize("token", ["a" * 40, "abcdefg" * 6])
def test_a_token_of_few_different_characters_guards_this_machine_alone(
    load: Load, refused: Callable[..., str], token: str
):
    assert load(f'[server]\ntoken = "{token}"').server.token
    said = refused(f'[server]\ntoken = "{token}"\nhost = "0.0.0.0"')
    assert "server.token must have at least 8 different characters" in said
    assert token not in said
    assert load('[server]\ntoken = "abcdefgh-abcdefgh-abcdefgh-abcdefgh"\nhost = "0.0.0.0"').server.token
