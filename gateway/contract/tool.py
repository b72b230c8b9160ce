"""The tool contract: a typed, documented async function becomes a tool for models.

The function's name, docstring and annotations make the schema. A parameter annotated ``ToolContext`` is
filled in by the gateway and hidden from the model.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from difflib import SequenceMatcher, get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from msgspec import Struct

from gateway.contract.channel import SenderRole
from gateway.contract.errors import PluginError, ToolError
from gateway.contract.messages import Attachment, DisplayHints, ResultMetadata
from gateway.contract.provider import ToolDefinition
from gateway.contract.questions import Answer, Choice

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError


class ToolOutput(Struct, frozen=True):
    """An explicit result; a plain string is one too, and an error if it begins with ``Error:``.

    ``untrusted``: it holds content of others, such as a web page, which may try to instruct the model.
    """

    content: str
    is_error: bool = False
    title: str | None = None
    metadata: ResultMetadata | None = None
    attachments: tuple[Attachment, ...] = ()
    untrusted: bool = False


class RunNested(Protocol):
    """Runs the agent on a task within this call, and returns its final text.

    ``tools`` names the allowed tools (None: all of the turn). Permissions, approvals and hooks are the
    turn's; stopping the turn stops the run. ``description`` names the task for users. The run has its own
    stored session; ``session`` continues that of an earlier run in this conversation. Raises ToolError if
    the run fails.
    """

    sessions: list[str]
    """The sessions of the runs of this call, in the order in which they began."""

    async def __call__(
        self,
        task: str,
        *,
        agent: str = "sub",
        tools: Collection[str] | None = None,
        system_prompt: str | None = None,
        model: str | None = None,
        description: str = "",
        session: str | None = None,
    ) -> str: ...


class AskUser(Protocol):
    """Asks the sender of the turn's message in its chat, and waits. None if no user can be asked.

    ``title`` is the question; see ``Question`` for the others. A call that is repeated after a crash gets the
    answers of the questions that were answered before, and finds the open one again.
    """

    async def __call__(
        self,
        title: str,
        *,
        detail: str = "",
        choices: Sequence[Choice] = (),
        multiple: bool = False,
        free_text: bool = False,
    ) -> Answer | None: ...


class CallTool(Protocol):
    """Runs another tool of the turn within this call, with its own permission, approval and hooks.

    Failures are results. The call is not recorded: after a crash it is repeated only with the outer call.
    """

    async def __call__(self, tool: str, arguments: Mapping[str, Any]) -> ToolOutput: ...


class FileDiff(Struct, frozen=True):
    """A unified diff, "" for equal texts, and its numbers of added and removed lines."""

    text: str
    added: int
    removed: int


class FileChange(Struct, frozen=True):
    """The change of one file: None in ``before`` creates it, None in ``after`` deletes it.

    ``path`` is absolute, ``name`` what diffs call the file. ``mode`` and ``new_mode`` are the permission bits
    before and after, if known. ``root`` is a folder: a restored file may need new folders below it.
    """

    path: str
    before: bytes | None
    after: bytes | None
    name: str = ""
    root: str = ""
    mode: int | None = None
    new_mode: int | None = None

    def diff(self) -> FileDiff:
        """Compare the two contents as texts."""
        old, new = text_of(self.before or b""), text_of(self.after or b"")
        name = self.name or self.path
        return unified_diff(
            old,
            new,
            "/dev/null" if self.before is None else name,
            "/dev/null" if self.after is None else name,
        )


class Changing(Protocol):
    """Records changes of files before the block makes them, so that a crash leaves no change unrecorded.

    The block calls what it is given once they are made; without that call they are forgotten at its end.
    """

    def __call__(self, changes: Sequence[FileChange]) -> AbstractAsyncContextManager[Callable[[], None]]: ...


class Watching(Protocol):
    """Records what the block changes in folders, by comparing them before and after it.

    Folders with more than 2,000 files or 20 MB are not watched.
    """

    def __call__(self, roots: Sequence[Path]) -> AbstractAsyncContextManager[None]: ...


class ToolContext(Struct, frozen=True, kw_only=True):
    """The context of a tool call.

    ``progress`` shows text to users while the tool runs; it is not part of the result for the model. ``key``
    is the same if a call is repeated after a crash, so that a tool can use it as an idempotency key.
    ``run_nested`` runs the agent on a subtask, ``call_tool`` one of the turn's tools; ``ask`` asks the user;
    ``changing`` records what the call changes in files, ``watching`` what a program changes in folders.
    """

    session: str
    message_id: str
    call_id: str
    key: str
    user: str
    progress: Callable[[str], None]
    run_nested: RunNested
    ask: AskUser
    call_tool: CallTool
    changing: Changing
    watching: Watching


class AskFirst(Struct, frozen=True):
    """A demand to ask a user about one call, even if a permission allows it. The question shows ``reason``.

    ``always`` is what "always" would allow from then on: calls that demand the same text. Without it
    "always" is not offered.
    """

    reason: str
    always: str | None = None


ToolFunction = Callable[..., Awaitable[str | ToolOutput]]
Execute = Callable[[Mapping[str, Any], ToolContext], Awaitable[str | ToolOutput]]
MatchKey = Callable[[Mapping[str, Any]], str | None]
MatchKind = Literal["text", "path", "command", "url"]
Asks = Callable[[Mapping[str, Any], SenderRole], AskFirst | None]


class Tool(Struct, frozen=True, kw_only=True):
    """A tool as the gateway keeps it.

    ``match_key`` returns the text that permission patterns are compared with; without it only plain rules
    apply, and "always" is not offered. ``match_kind`` is the kind of that text: any text, a path, a command
    (the argument vector in shell quoting, its program as an absolute path), or a URL. ``idempotent``:
    repeating a call after a crash is harmless. ``read_only``: a call changes nothing; this is trusted for
    built-in tools only, which then run without an approval if no rule names them. ``timeout_ms`` is the time
    limit of one call; default: the limit of its plugin (60 s unless set). ``concurrent``: calls next to each
    other in one reply of a model run at the same time, at most ten.

    ``asks`` returns an AskFirst for a call that a user must approve although a rule allows its kind, by
    arguments and the sender's role; ToolError refuses the call. A tool with ``asks`` handles private data: in
    a conversation with text of unauthorised users every call is asked about.
    """

    definition: ToolDefinition
    execute: Execute
    display: DisplayHints = DisplayHints()
    match_key: MatchKey | None = None
    idempotent: bool = False
    timeout_ms: int | None = None
    read_only: bool = False
    match_kind: MatchKind = "text"
    asks: Asks | None = None
    concurrent: bool = False

    @property
    def name(self) -> str:
        """The name that the model uses."""
        return self.definition.name


def as_output(result: str | ToolOutput) -> ToolOutput:
    """Convert a result to its explicit form."""
    if isinstance(result, ToolOutput):
        return result
    return ToolOutput(result, is_error=result.startswith("Error:"))


def tool_from(
    function: ToolFunction,
    *,
    display: DisplayHints | None = None,
    match_key: MatchKey | None = None,
    idempotent: bool = False,
    timeout_ms: int | None = None,
    read_only: bool = False,
    match_kind: MatchKind = "text",
    asks: Asks | None = None,
    concurrent: bool = False,
) -> Tool:
    """Make a tool of a typed async function. Raises PluginError if it has no docstring or is not async."""
    # Loaded with the first tool: 60 ms that every `trunkline` command would spend otherwise.
    from pydantic import ValidationError

    name = function.__name__
    doc = inspect.getdoc(function)
    if not inspect.iscoroutinefunction(function) or not doc:
        raise PluginError(f"tool {name!r} must be an async function with a docstring")
    context_name, arguments = _arguments_model(name, function)
    schema = arguments.model_json_schema()
    schema.pop("title", None)

    async def execute(raw: Mapping[str, Any], context: ToolContext) -> str | ToolOutput:
        try:
            given = arguments.model_validate(dict(raw))
        except ValidationError as error:
            raise ToolError(_readable(name, error, arguments.model_fields)) from None
        values = {field: getattr(given, field) for field in arguments.model_fields}
        if context_name is not None:
            values[context_name] = context
        return await function(**values)

    return Tool(
        definition=ToolDefinition(name=name, description=doc, parameters=schema),
        execute=execute,
        display=display or DisplayHints(),
        match_key=match_key,
        idempotent=idempotent,
        timeout_ms=timeout_ms,
        read_only=read_only,
        match_kind=match_kind,
        asks=asks,
        concurrent=concurrent,
    )


def _arguments_model(name: str, function: ToolFunction) -> tuple[str | None, type[BaseModel]]:
    from pydantic import ConfigDict, create_model

    hints = typing.get_type_hints(function, include_extras=True)
    context_name: str | None = None
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        annotation = hints.get(parameter.name)
        if annotation is None:
            raise PluginError(f"tool {name!r}: parameter {parameter.name!r} has no annotation")
        if annotation is ToolContext:
            context_name = parameter.name
            continue
        default: Any = ... if parameter.default is inspect.Parameter.empty else parameter.default
        fields[parameter.name] = (annotation, default)
    return context_name, create_model(f"{name}_arguments", __config__=ConfigDict(extra="forbid"), **fields)


def _readable(name: str, error: ValidationError, known: Collection[str]) -> str:
    """Return what is wrong with the arguments of a call; an unknown one with the nearest known name."""
    problems: list[str] = []
    for one in error.errors():
        at = ".".join(map(str, one["loc"])) or "arguments"
        # The known names are those of the call itself, not of the objects in it.
        near = get_close_matches(at, known, 1) if one["type"] == "extra_forbidden" and "." not in at else []
        problems.append(f"{at}: {one['msg']}" + (f" (did you mean {near[0]}?)" if near else ""))
    return f"wrong arguments for {name}: {'; '.join(problems)}"


_CONTEXT = 3
_MOST_COMPARED = 600
"""Most changed lines that are compared one by one; comparing takes quadratic time."""
_BOM = b"\xef\xbb\xbf"


def text_of(data: bytes) -> str:
    r"""Return the text of a file with ``\n`` as its line ends, or one line that says it is not text."""
    try:
        if b"\0" in data:
            raise ValueError
        return data.removeprefix(_BOM).decode().replace("\r\n", "\n")
    except ValueError:
        return f"({len(data)} bytes that are not text)\n"


def unified_diff(before: str, after: str, old_name: str, new_name: str) -> FileDiff:
    """Return the diff of two texts."""
    if before == after:
        return FileDiff("", 0, 0)
    hunks = [*_hunks(_lines(before), _lines(after))]
    text = "\n".join((f"--- {old_name}", f"+++ {new_name}", *(hunks or ("(only line ends differ)",))))
    return FileDiff(text, *(sum(line.startswith(mark) for line in hunks) for mark in "+-"))


def _lines(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n") if text else []


def _hunks(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    head = _common(old, new)
    rest = min(len(old), len(new)) - head
    tail = _common(old[::-1][:rest], new[::-1][:rest])
    first = max(head - _CONTEXT, 0)
    a = old[first : len(old) - tail + min(tail, _CONTEXT)]
    b = new[first : len(new) - tail + min(tail, _CONTEXT)]
    if max(len(a), len(b)) > _MOST_COMPARED:
        start, end = head - first, min(tail, _CONTEXT)
        middle = ("replace", start, len(a) - end, start, len(b) - end)
        groups = [[("equal", 0, start, 0, start), middle, ("equal", middle[2], len(a), middle[4], len(b))]]
    else:
        groups = [*SequenceMatcher(None, a, b).get_grouped_opcodes(_CONTEXT)]
    for group in groups:
        yield (
            f"@@ -{_range(first + group[0][1], first + group[-1][2])} "
            f"+{_range(first + group[0][3], first + group[-1][4])} @@"
        )
        for kind, a1, a2, b1, b2 in group:
            if kind == "equal":
                yield from (f" {line}" for line in a[a1:a2])
            else:
                yield from (f"-{line}" for line in a[a1:a2])
                yield from (f"+{line}" for line in b[b1:b2])


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


def _range(start: int, end: int) -> str:
    return f"{start + 1 if end > start else start},{end - start}"
