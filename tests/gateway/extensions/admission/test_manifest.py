"""Manifests: what is accepted, and every mistake with its line and its correction."""

from __future__ import annotations

import contextlib
import json
import re
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import PluginError
from gateway.extensions.admission.capabilities import Capabilities, FilesystemAccess
from gateway.extensions.admission.manifest import (
    Limits,
    Manifest,
    Schedule,
    is_name,
    parse_manifest,
    read_manifest,
)

WHOLE = b"""\
api: 1
name: security-audit
version: 1.10
requires: ">=0.1"
description: Blocks dangerous commands
author: user@example.org
license: MIT
entry: main.py
events: [tool.execute.before, cost.updated]
hooks: [transform_system_prompt]
tools: [scan]
commands: [audit]
capabilities:
  filesystem: {read: true, roots: [workspace], restricted: [".env", ".ssh/*"]}
  network: {enabled: true, allowlist: ["api.example.com", "*.example.org:8443"], methods: [GET]}
  exec: {enabled: true, allowlist: ["npx prettier --write *"]}
  llm: {enabled: true, budget: 5.0}
  messages: read
  tools: block
  send: true
  storage_mb: 10
  schedule: true
  routes: true
config: {type: object, properties: {max: {type: integer, default: 3}}}
secrets: [API_TOKEN]
schedule: [{name: digest, cron: "0 8 * * 1-5", timezone: config}]
limits: {memory_mb: 256}
"""
MINIMAL = b"name: audit\nversion: 1.0\n"


def refusal(data: bytes) -> list[str]:
    with pytest.raises(PluginError) as caught:
        parse_manifest(data)
    return str(caught.value).splitlines()


def test_001_20_an_invalid_manifest_is_refused_with_the_field_and_the_correction() -> None:
    wrong = WHOLE.replace(b'["api.example.com", "*.example.org:8443"]', b'"api.example.com"')
    wrong = wrong.replace(b"send: true", b"sned: true").replace(b"messages: read", b"messages: all")
    wrong = wrong.replace(b"cost.updated", b"cost.update").replace(b"memory_mb: 256", b"memory_mb: lots")
    assert refusal(wrong) == [
        'plugin.yml:9: events: "cost.update" is not an event; did you mean cost.updated?',
        'plugin.yml:15: capabilities.network.allowlist: "api.example.com" must be in a list; '
        'write ["api.example.com"]',
        'plugin.yml:18: capabilities.messages: "all" is not a value of messages; '
        "there are none, read, change",
        "plugin.yml:20: capabilities.sned: is not a key of a manifest; did you mean send?",
        'plugin.yml:27: limits.memory_mb: "lots" must be a whole number from 16 to 8192',
    ]


def test_a_manifest_keeps_what_is_written() -> None:
    manifest = parse_manifest(WHOLE)
    assert (manifest.name, manifest.version, manifest.entry) == ("security-audit", "1.10", "main.py")
    assert manifest.capabilities.filesystem == FilesystemAccess(read=True, restricted=(".env", ".ssh/*"))
    assert manifest.capabilities.routes == "token"
    assert manifest.schedule[0].cron == "0 8 * * 1-5"
    assert manifest.tools == ("scan",)


@pytest.mark.parametrize(
    ("cron", "after", "times"),
    [
        # The clocks go forward at 2:00: the missing time runs at the end of the gap.
        ("30 2 * * *", "2027-03-27T12:00+01:00", ["28 03:00+02:00", "29 02:30+02:00"]),
        ("30 * * * *", "2027-03-28T01:00+01:00", ["28 01:30+01:00", "28 03:30+02:00"]),
        # They go back at 3:00: a fixed time runs once, "each hour" also in the second one.
        ("30 2 * * *", "2027-10-30T12:00+02:00", ["31 02:30+02:00", "01 02:30+01:00"]),
        ("30 2 * * *", "2027-10-31T02:10+01:00", ["01 02:30+01:00", "02 02:30+01:00"]),
        ("30 * * * *", "2027-10-31T02:00+02:00", ["31 02:30+02:00", "31 02:30+01:00", "31 03:30+01:00"]),
    ],
)
def test_a_schedule_follows_the_clocks_of_its_zone(cron: str, after: str, times: list[str]) -> None:
    zone, moment = ZoneInfo("Europe/Berlin"), datetime.fromisoformat(after)
    found: list[str] = []
    for _ in times:
        moment = datetime.fromtimestamp(Schedule("a", cron).next_after(moment.timestamp(), zone), zone)
        found.append(f"{moment:%d %H:%M%z}"[:-2] + ":00")
    assert found == times


def test_a_hook_may_get_the_newest_messages_only() -> None:
    manifest = parse_manifest(MINIMAL + b"capabilities: {messages: read, messages_last: 20}\n")
    assert manifest.capabilities.messages_last == 20


def test_a_manifest_can_only_ask_that_failing_handlers_block() -> None:
    assert parse_manifest(MINIMAL).on_failure is None
    assert parse_manifest(MINIMAL + b"on_failure: closed\n").on_failure == "closed"
    with pytest.raises(PluginError, match='on_failure: "open" is not closed, the only value'):
        parse_manifest(MINIMAL + b"on_failure: open\n")


def test_001_21_a_manifest_without_capabilities_can_be_granted_nothing() -> None:
    assert parse_manifest(MINIMAL).capabilities == Capabilities()
    assert list(Capabilities().grants()) == []


@pytest.mark.parametrize(
    ("line", "grants"),
    [
        (b"events: [tool.execute.before]", ["tools:block"]),
        (b"events: [permission.ask]", ["tools:decide"]),
        (b"events: [chat.message]", ["messages:change"]),
        (b"events: [session.compacting, message.added, session.completed]", []),
        (b"hooks: [transform_user_input]", ["messages:change"]),
        (b"hooks: [after_agent_run]", ["messages:read"]),
        (b"events: [chat.message]\ncapabilities: {messages: read}", ["messages:change"]),
    ],
)
def test_a_subscription_to_a_deciding_event_requests_its_capability(line: bytes, grants: list[str]) -> None:
    assert list(parse_manifest(MINIMAL + line).capabilities.grants()) == grants


def test_001_31_a_manifest_of_the_original_format_is_read() -> None:
    manifest = parse_manifest(
        b"name: mimir-plugin-audit\nversion: 1.0.0\nauthor: A\ndescription: D\nlicense: MIT\n"
        b"capabilities:\n  filesystem: {read: true, write: false, delete: false, restricted: ['.env']}\n"
        b"  network: {enabled: true, allowlist: [api.example.com]}\n"
        b"  exec: {enabled: false, allowlist: []}\n  llm: {enabled: true, budget: 5.0}\n"
        b"events:\n  - tool.execute.before\n"
    )
    assert manifest.entry == "main.py"
    assert manifest.tools is None
    assert manifest.capabilities.tools == "block"


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"name: @scope/audit\nversion: 1", '1: @scope/audit: put it in quotes: "@scope/audit"'),
        (b"name: a-b\nevents:\n  - @a/b\n", '3: @a/b: put it in quotes: "@a/b"'),
        (b"name: ../../x\nversion: 1", '1: name: "../../x" is not a name'),
        (b'name: "@scope/.."\nversion: 1', '1: name: "@scope/.." is not a name'),
        (MINIMAL + b"api: 2", "3: api: 2 is not supported; this gateway supports 1"),
        (MINIMAL + b'requires: ">9"', '3: requires: ">9" excludes this gateway'),
        (b"version: 1", "1: name: is missing"),
        (MINIMAL + b"name: other", "3: name: is written twice (also in line 1)"),
        (b"name: &n audit\nversion: *n", "1: &n: anchors are not allowed"),
        (b"name: &n audit\nversion: *n", "2: *n: aliases are not allowed"),
        (b"name: !!python/name:os.system x", "tags are not allowed"),
        (b"[" * 1000, "is nested more than 20 levels deep"),
        (b"#" * 70_000, "has 70000 bytes; at most 65536 are allowed"),
        (b"name: \xff", "1: is not UTF-8 text"),
        (b"- a", "must be a table"),
        (b"", "must be a table"),
        (b"a: b: c", "is not YAML"),
        (MINIMAL + b"---\na: 1", "has a second document"),
        (MINIMAL + b"entry: ../main.py", "entry: "),
        (MINIMAL + b"entry: /main.py", "entry: "),
        (MINIMAL + b'description: "a\\u202eb"', "has the invisible character U+202E"),
        (MINIMAL + b"schedule: [{name: a, cron: '* * * * *'}]", "needs capabilities.schedule: true"),
        (MINIMAL + b"schedule: [{name: a, cron: '0 8'}]", "must be five fields, like"),
        (MINIMAL + b"schedule: [{name: a, cron: '0 25 * * *'}]", '"0 25 * * *" has a bad hour; write'),
        (MINIMAL + b"schedule: [{name: a, cron: '0 8 31 4 *'}]", "has a bad day-of-month"),
        (MINIMAL + b"schedule: [{name: a, cron: '0 8 */31 2 1#5'}]", "never occurs"),
        (
            MINIMAL + b"schedule: [{name: a, cron: '0 8 * * *'}, {name: a, cron: '0 9 * * *'}]",
            "has two jobs with one name; rename one",
        ),
        (MINIMAL + b"capabilities: {network: {enabled: true}}", "allowlist: is missing; name the hosts"),
        (MINIMAL + b"capabilities: {network: {enabled: true, allowlist: ['*']}}", '"*" must be a host'),
        (MINIMAL + b"capabilities: {network: {enabled: true, allowlist: ['http://a/']}}", "without a path"),
        (MINIMAL + b"capabilities: {exec: {enabled: true, allowlist: ['*']}}", "after a program"),
        (MINIMAL + b"capabilities: {filesystem: {roots: [/a/../b]}}", "must not contain .."),
        (MINIMAL + b"config: {type: strng}", "config: is not a JSON Schema"),
        (MINIMAL + b"config: {properties: {a: {$ref: 'http://127.0.0.1:1/'}}}", "Retrieval is disabled"),
        (MINIMAL + b"config: {properties: {trust: {}}}", "the gateway uses this name itself"),
    ],
)
def test_a_manifest_with_a_mistake_is_refused(data: bytes, told: str) -> None:
    lines = refusal(data)
    assert any(told in line for line in lines), lines
    assert all(line.startswith("plugin.yml:") for line in lines)


def test_a_bomb_of_aliases_is_not_expanded() -> None:
    levels = [b"a0: &a0 [x, x]"] + [
        b"a%d: &a%d [%s]" % (n, n, b", ".join([b"*a%d" % (n - 1)] * 9)) for n in range(1, 40)
    ]
    assert all(
        "not allowed" in line or "not a key" in line or "missing" in line
        for line in refusal(b"\n".join(levels))
    )


def test_a_bundle_needs_no_code(tmp_path: Path) -> None:
    (tmp_path / "plugin.yml").write_bytes(MINIMAL)
    assert read_manifest(tmp_path).entry == ""
    (tmp_path / "plugin.yml").write_bytes(MINIMAL + b"hooks: [filter_tools]\n")
    with pytest.raises(PluginError, match="hooks: needs code, but the folder"):
        read_manifest(tmp_path)
    (tmp_path / "main.py").touch()
    assert read_manifest(tmp_path).entry == "main.py"


def test_an_entry_that_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "plugin.yml").write_bytes(MINIMAL + b"entry: src/start.py\n")
    with pytest.raises(PluginError, match=r"src/start\.py is missing"):
        read_manifest(tmp_path)


@given(st.binary(max_size=400))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    """Each file is a manifest, or is refused."""
    with contextlib.suppress(PluginError):
        parse_manifest(data)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=9),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
        max_leaves=12,
    ),
    st.sampled_from(
        [
            "api",
            "name",
            "version",
            "events",
            "capabilities",
            "config",
            "schedule",
            "limits",
            "entry",
            "secrets",
        ]
    ),
)
def test_no_value_of_a_key_breaks_the_reader(value: object, key: str) -> None:
    data = f"{json.dumps(key)}: {json.dumps(value)}\n".encode()
    try:
        manifest = parse_manifest(MINIMAL + data if key not in ("name", "version") else data)
    except PluginError:
        return
    assert is_name(manifest.name)


@given(st.text(alphabet="abc-@/.", max_size=12))
def test_a_name_is_not_a_path(name: str) -> None:
    if is_name(name):
        assert ".." not in name
        assert not name.startswith("/")
        assert name.count("/") == (1 if name.startswith("@") else 0)


def test_the_documentation_has_every_key() -> None:
    page = (Path(__file__).parents[4] / "docs/plugins.md").read_text(encoding="utf-8")
    [text] = re.findall(r"```yaml\n(api: 1\n.*?)```", page, re.DOTALL)
    assert parse_manifest(text.encode()).limits == Limits()
    keys = {*Manifest.__struct_fields__, *Capabilities.__struct_fields__, *Limits.__struct_fields__}
    assert {key for key in keys if not re.search(rf"^ *{key}:", text, re.MULTILINE)} == set()
