"""The public modules: every name has a user among the shipped extensions and examples, or a stated reason."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("*/README.md")), *sorted((ROOT / "docs").glob("*.md"))]

MODULES = (
    "gateway",
    "gateway.api",
    "gateway.channel",
    "gateway.events",
    "gateway.provider_http",
    "gateway.markdown",
)
MOST_NAMES = 60
"""Names in ``gateway`` itself."""

_ABILITY = "an ability that channels have by defining its method; named here for their type annotations"
_ABILITIES = """
AsksQuestions Deletes Drafts Edits FollowsSession LimitsReplies OpensChats Paginates RecallsHistory Reconciles
ReportsHealth ReadsLinks ResolvesGroups Responder SendsAck SendsAlbums SendsError SendsVoice ServesHttp
ShowsAnswers ShowsTitle ShowsTyping Streams Watermarks
"""
_PROVIDER_ABILITY = "an ability that providers have by defining its method"
_EVENT = "an event that an agent loop or an event listener receives"
_HOOK = "a type in the signature of a hook, tool, command or agent loop"
_BUS_EVENT = "a type of event to subscribe to"
_FIELD = "the type of a field that channels fill in or read"

REASONS = {
    "gateway": {
        "AgentLoop": _HOOK,
        "MessagesEvent": _EVENT,
        "ReasoningEvent": _EVENT,
    },
    "gateway.channel": dict.fromkeys(_ABILITIES.split(), _ABILITY)
    | {"InboundKind": _FIELD, "ResponseMode": _FIELD}
    | {"SenderRole": _FIELD},
    "gateway.api": {
        "AnswersHttp": "an ability that the gateway finds by its shape; it need not be a base class",
        "PermissionService": "the type of a service in the context, for annotations",
    },
    "gateway.events": dict.fromkeys(
        (
            "AccessRevoked",
            "AgentCompleted",
            "AgentCreated",
            "AgentFailed",
            "AgentProgress",
            "AgentRole",
            "AgentStarted",
            "BudgetExceeded",
            "ChannelHealth",
            "ChatMessage",
            "CommandExecuted",
            "ContributionsChanged",
            "CostUpdated",
            "Disposed",
            "FeedbackGiven",
            "MessageAdded",
            "MessageRemoved",
            "MessageUpdated",
            "ModelChanged",
            "PermissionAsked",
            "PermissionReplied",
            "PluginRegistered",
            "PluginUnregistered",
            "SessionCompacted",
            "SessionCompacting",
            "SessionCreated",
            "SessionDeleted",
            "SessionError",
            "SessionIdle",
            "SessionRedone",
            "SessionResumed",
            "SessionTitled",
            "SessionUndone",
            "SlashCommandExecuted",
            "ToolStarting",
            "TranscriptChanged",
        ),
        _BUS_EVENT,
    ),
    "gateway.provider_http": dict.fromkeys(
        ("KnowsModels", "ReloadsCredentials", "SignsIn", "TriesKey"), _PROVIDER_ABILITY
    ),
    "gateway.markdown": {},
}


@cache
def trees() -> list[ast.Module]:
    """The code of all channels and plugins, and the examples of the pages."""
    files = [p for folder in ("channels", "plugins") for p in (ROOT / folder).rglob("*.py")]
    examples = [
        example for page in PAGES for example in re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
    ]
    return [ast.parse(text) for text in (*(p.read_text() for p in files), *examples)]


def used(module: str) -> Iterator[str]:
    """The names that shipped code imports from a public module, or reads from it under an alias."""
    parent, _, name = module.rpartition(".")
    for tree in trees():
        aliases = set[str]()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module == module:
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module == parent:
                aliases |= {alias.asname or alias.name for alias in node.names if alias.name == name}
        yield from (
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in aliases
        )


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_has_a_user_or_a_reason(module: str) -> None:
    names, users, reasons = set(import_module(module).__all__), set(used(module)), set(REASONS[module])
    assert sorted(names - users - reasons) == []
    assert sorted(reasons & users) == [], "a name with a user needs no reason"
    assert sorted(reasons - names) == []


@pytest.mark.parametrize("module", MODULES)
def test_a_public_module_is_plain_imports_and_one_list(module: str) -> None:
    path = Path(str(import_module(module).__file__))
    assert {type(node).__name__ for node in ast.parse(path.read_text()).body} == {
        "Expr",
        "ImportFrom",
        "Assign",
    }
    assert [name for name in import_module(module).__all__ if not hasattr(import_module(module), name)] == []


def test_each_name_is_in_one_public_module() -> None:
    names = [name for module in MODULES for name in import_module(module).__all__]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_the_contract_for_plugins_is_small() -> None:
    import gateway

    assert len(gateway.__all__) <= MOST_NAMES
    assert len(Path(gateway.__file__).read_text().splitlines()) <= 130


def test_importing_the_contract_loads_nothing_heavy() -> None:
    heavy = {"aiohttp", "sqlalchemy", "structlog"}
    code = f"import gateway, sys; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
