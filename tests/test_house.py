"""The house's own rules, held against the code as it stands."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.extensions.hooks import HOOKS

ROOT = Path(__file__).parent.parent
PACKAGES = ("gateway", "channels", "plugins")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))

ROWS = [
    *(f"000_{n:02}" for n in range(1, 26)),
    *(f"001_{n:02}" for n in range(1, 49)),
    *(f"002_{n:02}" for n in range(1, 45)),
    *(f"003_{n:02}" for n in range(1, 21)),
    *(f"004_{n:02}" for n in range(1, 42)),
]
"""The capabilities that are promised; each has a test that carries its number."""

LONGEST_FILE = 800
LONGEST_FUNCTION = 60
MOST_MODULES = 12
"""Modules of a package, beside its ``__init__``."""
SHORTEST_MODULE = 40

CORE = ("contract", "store", "session", "pipeline", "delivery")
MOST_CORE_LINES = 9_908
"""Lines of code (no docstrings, comments or blank lines) of the core path; 50 of them are the fence of
clusters."""
COMMENTED = ("pipeline", "delivery", "store", "session")
FEWEST_COMMENTS = 2.0
"""Comment lines for each 100 lines of code in these packages."""

CROWDED: dict[str, int] = {}
"""Packages with more modules. Numbers may only shrink."""

SHORT_MODULES = {
    "channels/discord/fake/__main__.py": "an entry point",
    "channels/slack/fake/__main__.py": "an entry point",
    "channels/telegram/fake/__main__.py": "an entry point",
    "gateway/__main__.py": "the entry point",
    "gateway/backoff.py": "one class that six packages share",
    "gateway/cli/doctor/finding.py": "one type that all checks share",
    "gateway/cli/version.py": "a whole command",
    "gateway/store/migrations/env.py": "Alembic's entry point",
    "gateway/testing/database.py": "loaded by test fixtures alone",
    "gateway/version.py": "read by the build",
    "plugins/coding_agents/keeper/__main__.py": "an entry point",
    "plugins/budget-alert/main.py": "a whole plugin with a manifest",
    "plugins/formatter/main.py": "a whole plugin with a manifest",
    "plugins/providers/openai/oauth.py": "OAuth tokens, apart from the adapter",
}
"""Modules of fewer lines, each with the reason why it is one."""

CONTRIBUTIONS = {
    "activity",
    "agent_loop",
    "announce",
    "append",
    "events",
    "get_plugin",
    "inject_next",
    "options",
    "questions",
    "register_mention_provider",
    "register_message_renderer",
    "register_shortcut",
    "sessions",
    "set_status_line",
    "submit",
    "table",
    "tasks",
}
"""What plugins contribute and use beside hooks, tools and providers."""

OPENINGS = re.compile(r"(What|Whether|Who|How|Where|Whatever|Somebody|Nobody)\b")
MOST_OPENINGS = 0.02
"""Share of docstrings whose first line may open with one of these words."""
BANNED = re.compile(
    r"\b(somebody|nobody|whatever|whoever|strangers?|wordings?|burials?|overhear)\b", re.IGNORECASE
)
"""Words that hide which component or user acts."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def functions() -> Iterator[tuple[Path, Function]]:
    for path in SOURCES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, Function):
                yield path, node


def named(path: Path, node: ast.stmt | ast.expr | ast.excepthandler | ast.alias) -> str:
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"


def test_the_packages_are_siblings() -> None:
    assert all((ROOT / package / "__init__.py").is_file() for package in PACKAGES)
    assert not list((ROOT / "tests").rglob("__init__.py"))
    assert not list((ROOT / "config").rglob("__init__.py"))


@pytest.mark.parametrize("row", ROWS)
def test_every_promised_row_has_a_test(row: str) -> None:
    assert any(f"def test_{row}_" in path.read_text() for path in TESTS), row


def test_every_room_of_the_core_is_named_on_its_page() -> None:
    page = (ROOT / "gateway/README.md").read_text()
    rooms = {p.name for p in (ROOT / "gateway").glob("*.py") if not p.name.startswith("__")}
    rooms |= {f"{p.parent.name}/" for p in (ROOT / "gateway").glob("*/__init__.py")}
    assert sorted(room for room in rooms if f"`{room}`" not in page) == []


def test_every_hook_and_contribution_point_has_a_shipped_example() -> None:
    """Each has a user among the one-file plugins, and each of these plugins has a test."""
    files = sorted((ROOT / "plugins").glob("[!_]*.py"))
    nodes = [node for path in files for node in ast.walk(parsed(path))]
    defined = {node.name for node in nodes if isinstance(node, Function)}
    used = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    assert sorted({*HOOKS, "commands", "figures", "routes"} - defined) == []
    assert sorted(CONTRIBUTIONS - used) == []
    tested = {path.name for path in TESTS if path.parent == ROOT / "tests/plugins"}
    assert sorted(path.stem for path in files if f"test_{path.name}" not in tested) == []


def test_no_file_is_too_long() -> None:
    lengths = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in SOURCES}
    assert {path: length for path, length in lengths.items() if length > LONGEST_FILE} == {}


def test_no_function_is_too_long() -> None:
    """A migration is a list of steps, which stays as it was written."""
    long = [
        named(path, function)
        for path, function in functions()
        if (function.end_lineno or 0) - function.lineno >= LONGEST_FUNCTION and "migrations" not in path.parts
    ]
    assert long == []


def test_everything_public_has_a_docstring() -> None:
    bare = []
    for path in SOURCES:
        module = parsed(path)
        if not ast.get_docstring(module) and module.body:
            bare.append(str(path.relative_to(ROOT)))
        bare += [
            named(path, node)
            for node in module.body
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and not node.name.startswith("_")
            and not ast.get_docstring(node)
        ]
    assert bare == []


def test_tasks_live_in_task_groups() -> None:
    """``create_task`` is only called on a group, never on asyncio or a loop."""
    loose = []
    for path in SOURCES:
        for node in ast.walk(parsed(path)):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            owner = ast.unparse(node.func.value)
            if node.func.attr == "create_task" and not owner.rstrip("_").endswith(("tasks", "group")):
                loose.append(named(path, node))
            if f"{owner}.{node.func.attr}" in ("asyncio.ensure_future", "asyncio.wait_for"):
                loose.append(named(path, node))
    assert loose == []


def test_broad_excepts_say_why() -> None:
    unexplained = []
    for path in SOURCES:
        lines = path.read_text().splitlines()
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ExceptHandler) and node.type is not None:
                broad = ast.unparse(node.type) in ("Exception", "BaseException")
                logged = any(
                    "log." in ast.unparse(statement) or "raise" in ast.unparse(statement)
                    for statement in node.body
                )
                if broad and not logged and "noqa: BLE001 - " not in lines[node.lineno - 1]:
                    unexplained.append(named(path, node))
    assert unexplained == []


def test_connections_are_opened_in_few_places() -> None:
    """Only ``fetching`` opens addresses that messages name; others open those of the settings."""
    opens = re.compile(
        r"ClientSession\(|start_connection\(|urlopen\(|http\.client|import requests|(import|from) httpx"
    )
    places = {str(p.relative_to(ROOT)) for p in SOURCES if opens.search(p.read_text())}
    tools = ("/fake/", "gateway/testing/", "gateway/cli/")
    assert {place for place in places if not any(part in place for part in tools)} == {
        "channels/slack/api.py",
        "channels/slack/connection.py",
        "gateway/fetching.py",
        "gateway/http_client/aiohttp_client.py",
        "gateway/http_client/httptools_client.py",
        "gateway/mcp/login.py",
        "gateway/mcp/remote.py",
    }


def test_tests_use_no_mocks() -> None:
    mocks = re.compile(r"unittest\.mock|MagicMock|AsyncMock|monkeypatch\b")
    assert [
        str(p.relative_to(ROOT)) for p in TESTS if p != Path(__file__) and mocks.search(p.read_text())
    ] == []


def test_nothing_is_left_for_later() -> None:
    later = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b|for now\b")
    assert [str(p.relative_to(ROOT)) for p in SOURCES if later.search(p.read_text())] == []


def test_every_channel_folder_has_the_same_shape() -> None:
    for folder in (path for path in (ROOT / "channels").iterdir() if (path / "__init__.py").is_file()):
        assert {"channel.py", "parse.py", "render.py"} <= {path.name for path in folder.iterdir()}, (
            folder.name
        )


def test_every_hook_is_documented() -> None:
    from gateway.extensions.hooks import HOOKS

    text = (ROOT / "plugins" / "README.md").read_text()
    assert [hook for hook in HOOKS if hook not in text] == []


def test_001_48_at_least_five_confined_plugins_are_shipped_each_with_a_page_and_a_test() -> None:
    folders = sorted(path.parent for path in (ROOT / "plugins").glob("*/plugin.yml"))
    tests = "".join(path.read_text() for path in (ROOT / "tests" / "plugins").glob("test_*.py"))
    assert len(folders) >= 5
    assert [f.name for f in folders if not (f / "README.md").is_file() or f'"{f.name}"' not in tests] == []
    listed = (ROOT / "plugins" / "README.md").read_text()
    assert [folder.name for folder in folders if f"({folder.name}/" not in listed] == []


def test_the_core_reads_the_environment_in_one_place() -> None:
    """Settings do; so do the commands, whose environment is their caller's, and the fakes of tests."""
    reads = re.compile(r"os\.environ|os\.getenv")
    places = {str(p.relative_to(ROOT)) for p in SOURCES if reads.search(p.read_text())}
    assert {p for p in places if not p.startswith(("gateway/cli/", "gateway/testing/"))} == {
        "gateway/settings/loader.py"
    }


WHAT_CHANNELS_DO = (
    "messages in",
    "chats",
    "sessions",
    "when to reply in groups",
    "streaming",
    "while the answer is generated",
    "format",
    "the six types of parts",
    "long answers",
    "commands",
    "approval buttons",
    "files in",
    "files out",
    "edited messages",
    "deleted messages",
    "limits",
    "several accounts",
    "wrong or missing token",
    "health",
    "access",
    "each message answered once",
    "messages during an outage",
    "uncertain sends",
    "invalid input",
    "forged or stale requests",
)


def channel_cells() -> Iterator[tuple[str, str, str]]:
    """Of the table of the channels' page: what, which channel, what is said of it."""
    lines = (ROOT / "channels/README.md").read_text().splitlines()
    begin = next(at for at, line in enumerate(lines) if line.startswith("| what |"))
    names = [name.strip() for name in lines[begin].strip("|").split("|")][1:]
    for line in lines[begin + 2 :]:
        if not line.startswith("|"):
            return
        what, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        yield from ((what, name, cell) for name, cell in zip(names, cells, strict=True))


def test_every_channel_documents_what_each_one_has_to_do() -> None:
    folders = {path.parent.name for path in (ROOT / "channels").glob("*/channel.py")}
    told = {(what, name) for what, name, _ in channel_cells()}
    assert {name for _, name in told} == folders
    assert [(w, name) for w in WHAT_CHANNELS_DO for name in sorted(folders) if (w, name) not in told] == []


def test_what_a_channel_is_said_to_do_is_shown_by_a_test() -> None:
    wrong = []
    for what, name, cell in channel_cells():
        shown = re.findall(r"`([\w/]+\.py)::(\w+)`", cell)
        if cell.startswith("done: ") != bool(shown) or not re.match(r"done: |not$|not: |exempt: ", cell):
            wrong.append((what, name, cell))
        for file, test in shown:
            path = ROOT / "tests" / file if "/" in file else ROOT / "tests/channels" / name / file
            if not path.is_file() or f"def {test}(" not in path.read_text():
                wrong.append((what, name, f"{file}::{test}"))
    assert wrong == []


def code_lines(path: Path) -> tuple[int, int]:
    """Return the lines of code and of comments of a file; docstrings are neither."""
    text = path.read_text()
    documentation: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            documentation |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    code: set[int] = set()
    comments = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments += 1
        elif token.type not in _LAYOUT:
            code |= set(range(token.start[0], token.end[0] + 1))
    return len(code - documentation), comments


_LAYOUT = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def modules() -> Iterator[Path]:
    """Yield the modules, without ``__init__`` and the migrations."""
    for path in SOURCES:
        if path.name != "__init__.py" and "versions" not in path.parts:
            yield path


def test_no_package_has_too_many_modules() -> None:
    counted = Counter(str(path.parent.relative_to(ROOT)) for path in modules())
    assert {package: n for package, n in counted.items() if n > MOST_MODULES} == CROWDED


def test_no_module_is_a_fragment() -> None:
    short = {str(p.relative_to(ROOT)) for p in modules() if len(p.read_text().splitlines()) < SHORTEST_MODULE}
    assert short == set(SHORT_MODULES)


def test_the_core_can_be_read_in_an_evening() -> None:
    files = [path for package in CORE for path in (ROOT / "gateway" / package).glob("*.py")]
    assert sum(code_lines(path)[0] for path in files) <= MOST_CORE_LINES


@pytest.mark.parametrize("package", COMMENTED)
def test_the_core_says_why(package: str) -> None:
    counted = [code_lines(path) for path in (ROOT / "gateway" / package).glob("*.py")]
    code, comments = (sum(column) for column in zip(*counted, strict=True))
    assert 100 * comments / code >= FEWEST_COMMENTS


def docstrings() -> Iterator[tuple[Path, int, str]]:
    """Yield each docstring with its place."""
    for path in SOURCES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Module | ast.ClassDef | Function) and (text := ast.get_docstring(node)):
                yield path, getattr(node, "lineno", 1), text


def test_docstrings_begin_with_a_noun_or_a_verb() -> None:
    found = [OPENINGS.match(text) is not None for _, _, text in docstrings()]
    assert sum(found) / len(found) < MOST_OPENINGS


def test_docstrings_name_who_acts() -> None:
    assert [f"{p.relative_to(ROOT)}:{n}" for p, n, text in docstrings() if BANNED.search(text)] == []
