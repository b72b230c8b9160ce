"""Patterns for commands, paths and URLs: what a rule or an "always" covers, and what it must not."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from gateway import Plugin, SettingsError, Tool, tool_from
from gateway.access.permissions import Permissions
from gateway.patterns import commands, decide, granted, offer
from gateway.testing.chat import chatting
from gateway.testing.fake_models.script import Reply, Use
from tests.gateway.access.test_approvals import ask, result

Action = Literal["allow", "deny", "ask"]
GIT = "/usr/bin/git"


def key(*argv: str) -> str:
    return shlex.join(argv)


@pytest.mark.parametrize(
    ("argv", "stored"),
    [
        ((GIT, "status"), f"{GIT} status *"),
        ((GIT, "status", "-s", "src"), f"{GIT} status *"),
        ((GIT, "log", "--oneline", "-5"), f"{GIT} log *"),
        (("/usr/bin/npm", "run", "build"), "/usr/bin/npm run build *"),
        (("/usr/bin/npm", "test"), "/usr/bin/npm test *"),
        (("/usr/bin/ls", "-la"), "/usr/bin/ls *"),
        (("/opt/go/bin/go", "test", "./..."), "/opt/go/bin/go test *"),
    ],
)
def test_004_t21_always_stores_the_program_and_its_leading_arguments(
    argv: Sequence[str], stored: str
) -> None:
    assert offer("command", key(*argv)) == stored
    assert granted("command", stored, key(*argv))
    assert granted("command", stored, key(*argv, "more"))


EXACT = [
    ("/usr/bin/python3", "-c", "print(1)"),
    ("/usr/bin/python3.11", "script.py"),
    ("/bin/bash", "-c", "git status"),
    ("/bin/sh", "build.sh"),
    ("/usr/bin/env", "git", "status"),
    ("/usr/bin/sudo", "ls"),
    ("/usr/bin/xargs", "ls"),
    ("/usr/bin/find", ".", "-exec", "ls", "{}", ";"),
    ("/usr/bin/ssh", "host", "ls"),
    ("/usr/bin/npx", "prettier"),
    ("/usr/bin/nice", GIT, "status"),
    ("/usr/bin/timeout", "5", GIT, "status"),
    ("/lib64/ld-linux-x86-64.so.2", "/bin/sh"),
    (GIT, "-c", "core.pager=sh", "status"),
    (GIT, "-C", "/tmp", "status"),
    (GIT, "--exec-path=/tmp", "status"),
    (GIT, "diff", "--ext-diff"),
    (GIT, "diff", "--ext"),
    (GIT, "log", "--output=/home/ada/.bashrc"),
    (GIT, "diff", "--no-index", "/etc/passwd", "/dev/null"),
    (GIT, "push", "--receive-pack=/tmp/x"),
    (GIT, "fetch", "--upload-p", "/tmp/x"),
    (GIT, "fetch", "ext::sh -c id"),
    (GIT, "rebase", "-x", "sh"),
    (GIT, "submodule", "foreach", "sh"),
    (GIT, "bisect", "run", "sh"),
    ("/usr/bin/tar", "cf", "a.tar", "--checkpoint-action=exec=sh"),
    ("/usr/bin/sort", "-o", "x", "y"),
    ("/usr/bin/npm", "run", "build", "--script-shell=/tmp/x"),
    ("/usr/bin/npm", "run", "build", "-script-shell", "/tmp/x"),
    ("/usr/bin/npm", "run", "--script-shell=/tmp/x"),
    ("/usr/bin/npm", "install", "left-pad"),
    ("/usr/bin/pnpm", "test", "--config.script-shell=/tmp/x"),
    ("/usr/bin/cargo", "test", "--config", "build.rustc-wrapper='sh'"),
    ("/usr/bin/go", "test", "-exec", "sh"),
    ("/usr/bin/go", "build", "--toolexec=sh"),
    ("/usr/bin/go", "test", "-coverprofile=/home/ada/.bashrc"),
    ("/usr/bin/go", "test", "-test.cpuprofile", "/home/ada/.bashrc"),
    ("/usr/bin/cargo", "build", "--target-dir", "/home/ada/bin"),
    ("/usr/bin/cat", "notes.txt"),
]


@pytest.mark.parametrize("argv", EXACT, ids=" ".join)
def test_004_t21_always_covers_exactly_a_command_that_could_start_others(argv: Sequence[str]) -> None:
    stored = offer("command", key(*argv))
    assert stored == key(*argv)
    assert granted("command", stored, key(*argv))
    assert not granted("command", stored, key(*argv, "more"))
    assert not granted("command", stored, key(*argv[:-1]))
    assert not any(granted("command", f"{key(*argv[:n])} *", key(*argv)) for n in range(1, len(argv) + 1))


STORED = (f"{GIT} status *", "/usr/bin/npm run build *", "/usr/bin/ls *", f"cd src && {GIT} diff *")
WRAPPERS = ("bash", "env", "sudo", "xargs", "python3", "node", "perl5.36", "nohup", "timeout", "npx", "ssh")
WORDS = st.one_of(
    st.sampled_from(
        (*WRAPPERS, "-c", "--exec", "-exec", "status", "run", "build", "diff", "*", "&&", ";", "", " ", "ls")
    ),
    st.text(max_size=8),
)


@given(st.sampled_from(STORED), st.lists(WORDS, max_size=4), st.sampled_from(WRAPPERS), WORDS)
@settings(max_examples=300, deadline=None)
def test_004_t21_an_always_never_covers_another_program(
    stored: str, more: list[str], wrapper: str, other: str
) -> None:
    """Wrappers before the command, another program of its name, and words joined or split in other ways."""
    own = stored.removesuffix(" *").split()
    folder, argv = (own[:3], own[3:]) if own[0] == "cd" else ([], own)
    assume("\0" not in "".join((*more, other)))
    name = argv[0].rpartition("/")[2]
    for wrapped in (
        [f"/usr/bin/{wrapper}", *argv, *more],
        [f"/usr/bin/{wrapper}", "-c", key(*argv), *more],
        [f"/tmp/{name}", *argv[1:], *more],
        [f"/usr/bin/../../tmp/{name}", *argv[1:], *more],
        [name, *argv[1:], *more],
        [f"./{name}", *argv[1:], *more],
        [f"{key(*argv)} ", *more],
        [*argv[:-1], f"{argv[-1]} {other}x", *more],
        [*argv[:-1], f"{argv[-1]}x", *more],
    ):
        assert not granted("command", stored, " ".join((*folder, key(*wrapped)))), wrapped
    elsewhere = f"cd {shlex.quote(other or '/')} && {key(*argv, *more)}"
    if other != "src":
        assert not granted("command", stored, elsewhere)
    covered = granted("command", stored, " ".join((*folder, key(*argv, *more))))
    starts = commands.starts_programs(commands.Command("", (*argv, *more)))
    assert covered is not starts


@given(st.lists(st.text(alphabet=st.characters(blacklist_characters="\0"), max_size=12), max_size=6))
@settings(max_examples=300, deadline=None)
def test_004_t21_what_an_always_offers_covers_its_own_call_and_nothing_shorter(arguments: list[str]) -> None:
    for program in (GIT, "/usr/bin/npm", "/bin/sh", "/usr/bin/made-up"):
        call = key(program, *arguments)
        stored = offer("command", call)
        assert stored is not None
        assert granted("command", stored, call)
        if not stored.endswith(" *"):
            assert stored == call
            assert not granted("command", stored, key(program, *arguments, "x"))


def test_004_t21_a_link_to_an_interpreter_is_one(tmp_path: Path) -> None:
    """Other links keep the path that they are called by, so that a grant holds for one path alone."""
    link = tmp_path / "git"
    link.symlink_to(sys.executable)
    assert offer("command", key(str(link), "status")) == key(str(link), "status")
    assert not granted("command", f"{link} status *", key(str(link), "status", "-s"))
    assert decide("command", {f"{link} *": "allow"}, key(str(link), "status")) == "ask"
    other = tmp_path / "bin" / "git"
    other.parent.mkdir()
    other.write_text("")
    assert not granted("command", f"{GIT} status *", key(str(other), "status"))
    assert offer("command", key(str(other), "status")) == f"{other} status *"


RULES: Mapping[str, Action] = {
    "git push *": "deny",
    "git status *": "allow",
    "git log --oneline": "allow",
    "bash -c 'ls | wc -l'": "allow",
    "find *": "allow",
    "/opt/tools/deploy *": "allow",
    "* --dry-run": "allow",
}


@pytest.mark.parametrize(
    ("argv", "action"),
    [
        ((GIT, "status"), "allow"),
        ((GIT, "status", "-s", "a b"), "allow"),
        ((GIT, "log", "--oneline"), "allow"),
        ((GIT, "log", "--oneline", "-p"), "deny"),
        ((GIT, "status; rm"), "deny"),
        ((GIT, "push", "origin"), "deny"),
        (("/tmp/git", "push"), "deny"),
        (("/tmp/git", "status"), "deny"),
        (("/home/ada/git status", "x"), "deny"),
        (("/bin/bash", "-c", "ls | wc -l"), "allow"),
        (("/bin/bash", "-c", "ls | wc -l; id"), "deny"),
        (("/bin/bash", "-c", "ls | wc -l", "x"), "deny"),
        (("/usr/bin/find", ".", "-name", "x"), "allow"),
        (("/usr/bin/find", ".", "-exec", "id", ";"), "ask"),
        (("/opt/tools/deploy", "now"), "allow"),
        (("/opt/tools/../../tmp/deploy", "now"), "deny"),
        (("/opt/x", "--dry-run"), "allow"),
        (("/usr/bin/env", "--dry-run"), "ask"),
        (("deploy", "now"), "deny"),
        ((), "deny"),
    ],
)
def test_004_t21_rules_for_commands_compare_words(argv: Sequence[str], action: Action) -> None:
    assert decide("command", RULES, key(*argv)) == action


@pytest.mark.parametrize(
    ("rule", "call", "starting"),
    [
        ("rg *", ("rg", "-n", "--pretty", "a"), ("--pre", "sh")),
        ("rg *", ("rg", "a"), ("--hostname-bin=/tmp/x",)),
        ("fd *", ("fd", "-H", "-e", "py"), ("-x", "sh")),
        ("fdfind *", ("fdfind", "a"), ("-HX", "sh")),
        ("fd *", ("fd", "a"), ("--exec-batch", "sh")),
        ("bat *", ("bat", "-p", "a"), ("--pager=sh",)),
        ("split *", ("split", "-l", "9", "a"), ("--filter=sh",)),
        ("install *", ("install", "-m", "600", "a", "b"), ("--strip-program=/tmp/x",)),
        ("wget *", ("wget", "-nv", "https://example.org"), ("-e", "use_askpass=/tmp/x")),
    ],
)
def test_a_wildcard_for_a_search_never_allows_the_program_that_its_options_start(
    rule: str, call: Sequence[str], starting: Sequence[str]
) -> None:
    program, *arguments = call
    assert decide("command", {rule: "allow"}, key(f"/usr/bin/{program}", *arguments)) == "allow"
    started = key(f"/usr/bin/{program}", *arguments, *starting)
    assert decide("command", {rule: "allow"}, started) == "ask"


@pytest.mark.parametrize(
    "arguments",
    [("merge-index", "/tmp/x", "-a"), ("for-each-repo", "--config=x", "y"), ("archive", "-o", "x")],
)
def test_a_wildcard_allows_no_subcommand_of_git_that_runs_its_arguments(arguments: Sequence[str]) -> None:
    assert decide("command", {"git *": "allow"}, key(GIT, *arguments)) == "ask"


def test_004_t21_a_wildcard_never_allows_a_script_of_a_shell() -> None:
    for rules in ({"bash -c *": "allow"}, {"bash *": "allow"}, {"*": "allow"}, {"b?sh -c '*'": "allow"}):
        assert decide("command", rules, key("/bin/bash", "-c", "id")) == "ask"  # type: ignore[arg-type]
        assert decide("command", rules, key("/bin/bash", "-c", "*")) == "ask"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("src/*", "src/a.py", True),
        ("src/*", "src/deep/a.py", True),
        ("src/*", "./src//a.py", True),
        ("src/*", "src/../secret", False),
        ("src/*", "src2/a.py", False),
        ("./src/", "src/a.py", True),
        ("src/", "src", True),
        ("src/", "srcs", False),
        ("*.env", ".env", True),
        ("*", "any/thing", True),
        ("/srv/work/*", "/srv/work/x/../y", True),
        ("/srv/work/*", "/srv/work/../../etc/passwd", False),
        ("/srv/work/*", "//srv/work/x", True),
        ("src/[a].py", "src/[a].py", True),
    ],
)
def test_004_t17_rules_for_paths_compare_them_normalised(pattern: str, path: str, matches: bool) -> None:
    assert (decide("path", {pattern: "allow"}, path) == "allow") is matches


@pytest.mark.parametrize("path", ["..", "../x", "src/../../x", "", "a\0b"])
def test_004_t17_a_path_that_leaves_its_root_is_denied_by_every_rule(path: str) -> None:
    assert decide("path", {"*": "allow"}, path) == "deny"
    assert offer("path", path) is None


@given(st.lists(st.sampled_from(("..", ".", "a", "src", "")), max_size=8))
def test_004_t17_no_spelling_of_a_path_gets_out_of_a_rule(steps: list[str]) -> None:
    path = "/".join(("src", *steps))
    inside = os.path.normpath(path).split("/")[0] == "src"
    assert (decide("path", {"src/": "allow"}, path) == "allow") is inside


@pytest.mark.parametrize(
    ("pattern", "url", "action"),
    [
        ("https://example.org", "https://example.org/any?q=1", "allow"),
        ("https://example.org/docs", "https://example.org/docs/a", "allow"),
        ("https://example.org/docs", "https://example.org/docs?x", "allow"),
        ("https://example.org/docs", "https://example.org/docs2", "deny"),
        ("https://example.org/docs", "https://example.org/docs/../admin", "deny"),
        ("https://example.org/docs", "https://example.org/docs/%2e%2e/admin", "deny"),
        ("https://example.org/docs", "https://example.org/docs/..%2fadmin", "ask"),
        ("https://example.org/docs", "https://example.org/docs/%252e%252e/admin", "ask"),
        ("https://example.org/docs", "https://example.org/docs\\..\\admin", "ask"),
        ("https://example.org", "http://example.org/", "deny"),
        ("example.org", "http://example.org/", "allow"),
        ("example.org", "https://EXAMPLE.org./", "allow"),
        ("example.org", "https://example.org:8443/", "deny"),
        ("example.org:8443", "https://example.org:8443/", "allow"),
        ("example.org:*", "https://example.org:8443/", "allow"),
        ("example.org", "https://example.org.evil.net/", "deny"),
        ("example.org", "https://evil.net/example.org", "deny"),
        ("example.org", "https://example.org@evil.net/", "deny"),
        ("example.org", "https://ada:pw@example.org/", "deny"),
        ("example.org", "https://@evil.net/", "deny"),
        ("example.org", "https://evil.net#@example.org/", "deny"),
        ("example.org", "https://evil.net\\@example.org/", "deny"),
        ("*.example.org", "https://docs.example.org/", "allow"),
        ("*.example.org", "https://example.org/", "deny"),
        ("*.example.org", "https://notexample.org/", "deny"),
        ("bücher.example", "https://xn--bcher-kva.example/", "allow"),
        ("*.bücher.example", "https://a.bücher.example/", "allow"),
        ("example.org", "https://\uff45xample.org/", "allow"),
        ("example.org", "https://\u0435xample.org/", "deny"),
        ("*", "https://example.org/", "allow"),
        ("*", "file:///etc/passwd", "deny"),
        ("*", "gopher://example.org/", "deny"),
        ("*", "https://127.1/", "deny"),
        ("*", "https://0x7f.1/", "deny"),
        ("*", "https://2130706433/", "deny"),
        ("*", "https://ex%61mple.org/", "deny"),
        ("*", "https://example.org/\r\nX: y", "deny"),
        ("*", "https://example.org:99999/", "deny"),
        ("[::1]", "http://[::1]/", "allow"),
        ("127.0.0.1", "http://[::ffff:127.0.0.1]/", "allow"),
    ],
)
def test_004_t21_rules_for_addresses_compare_what_is_requested(
    pattern: str, url: str, action: Action
) -> None:
    assert decide("url", {pattern: "allow"}, url) == action


def test_004_t21_a_rule_that_denies_an_address_covers_every_port_and_unclear_path() -> None:
    rules: Mapping[str, Action] = {"example.org/admin": "deny", "*": "allow"}
    for url in (
        "http://example.org:81/admin/x",
        "https://example.org/x/..%2fadmin",
        "http://example.org/admin",
    ):
        assert decide("url", rules, url) == "deny"
    assert decide("url", rules, "https://example.org/docs") == "allow"


def test_004_t21_always_for_an_address_covers_its_host() -> None:
    stored = offer("url", "https://docs.example.org/a?b=c")
    assert stored == "https://docs.example.org/*"
    assert granted("url", stored, "https://docs.example.org./other")
    for other in ("http://docs.example.org/a", "https://docs.example.org:8443/", "https://example.org/", "x"):
        assert not granted("url", stored, other)
    assert offer("url", "https://ada@docs.example.org/") is None


@given(st.text(max_size=40), st.sampled_from(("https://a.example/", "https://a.example/docs/", "")))
@settings(max_examples=300, suppress_health_check=[HealthCheck.filter_too_much])
def test_004_t21_no_text_fools_or_breaks_the_patterns(text: str, start: str) -> None:
    from yarl import URL

    for kind in ("text", "path", "command", "url"):
        assert decide(kind, {"x": "allow"}, start + text) in ("allow", "deny", "ask")
        stored = offer(kind, start + text)
        assert stored is None or granted(kind, stored, start + text)
    if decide("url", {"a.example": "allow"}, start + text) == "allow":
        assert (URL(start + text).raw_host or "").rstrip(".") == "a.example"


def test_a_key_that_is_too_long_is_denied() -> None:
    for kind in ("path", "command", "url"):
        assert decide(kind, {"*": "allow"}, "/" + "x" * 64_000) == "deny"
        assert offer(kind, "/" + "x" * 64_000) is None
    assert decide("text", {"*": "allow"}, "x" * 100_000) == "allow"


class Terminal(Plugin):
    """A tool whose key is a command; it runs nothing."""

    name = "terminal"

    def __init__(self) -> None:
        async def shell(command: str) -> str:
            """Run a command."""
            return f"ran {command}"

        def match(arguments: Mapping[str, Any]) -> str:
            return f"/usr/bin/{arguments['command']}"

        async def open_page(command: str) -> str:
            """Open a page."""
            return ""

        self._tools = [
            tool_from(shell, match_key=match, match_kind="command"),
            tool_from(open_page, match_key=lambda arguments: arguments["command"], match_kind="url"),
        ]

    def tools(self) -> Sequence[Tool]:
        return self._tools


async def test_004_t21_the_button_prints_what_always_stores_and_later_calls_are_covered(
    tmp_path: Path,
) -> None:
    async with chatting(tmp_path, Terminal(), permissions={"shell": "ask"}) as chat:
        answer_id, asked = await ask(chat, "git status -s")
        assert asked.always == "/usr/bin/git status *"
        await chat.host.settle(asked.approval_id, "always", session="s")
        await chat.answer(answer_id)
        [stored] = await chat.gateway.parts.access.grants.all()
        assert (stored.tool, stored.matches) == ("shell", "/usr/bin/git status *")
        chat.model.then(Reply((Use("shell", '{"command": "git status src"}'),), "tools"))
        assert result(await chat.say("again")).output == "ran git status src"
        for command in ("git log", "bash -c git"):
            answer_id, asked = await ask(chat, command)
            assert asked.always == ("/usr/bin/git log *" if command == "git log" else "/usr/bin/bash -c git")
            await chat.host.settle(asked.approval_id, "deny", session="s")
            await chat.answer(answer_id)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (
            {"shell": {"git 'status": "allow"}},
            'permissions.shell: the pattern "git \'status" is not a command',
        ),
        ({"shell": {" ": "allow"}}, "is empty; write a program"),
        ({"shell": {"./run *": "allow"}}, "begins with a relative path"),
        ({"open_page": {"not an address": "deny"}}, "permissions.open_page: .*is not an address"),
    ],
)
def test_a_pattern_that_can_match_nothing_is_refused(rule: dict[str, Any], said: str) -> None:
    tools = {tool.name: tool for tool in Terminal().tools()}
    with pytest.raises(SettingsError, match=said):
        Permissions(rule).check(tools)
