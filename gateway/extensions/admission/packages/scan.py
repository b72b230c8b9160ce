"""A scan of a plugin's code for what its manifest does not declare.

It reads the source and runs nothing. It finds what is written plainly; ``LIMITS`` says what it cannot find.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from gateway.contract.errors import PluginError
from gateway.extensions.admission.fields import invisible
from gateway.extensions.admission.manifest import Manifest, read_manifest
from gateway.extensions.admission.packages.dependencies import REQUIREMENTS, parse_requirements
from gateway.extensions.admission.tree import SITE, files_of

LIMITS = (
    "The scan reads Python source and text of the plugin itself, not of its dependencies in site/ and not "
    "compiled extensions. Code that is built at run time, hidden in data, or reached through another name is "
    "not found. A plugin without findings is not safe for that reason: its confinement is what limits it."
)
_LARGEST = 2_000_000
_NETWORK = "network"
_EXEC = "exec"
_MODULES: Mapping[str, str] = {
    **dict.fromkeys(
        ("socket", "ssl", "http", "urllib", "ftplib", "smtplib", "imaplib", "asyncore"), _NETWORK
    ),
    **dict.fromkeys(("requests", "httpx", "aiohttp", "urllib3", "websockets", "socketserver"), _NETWORK),
    **dict.fromkeys(("subprocess", "multiprocessing", "pty"), _EXEC),
    **dict.fromkeys(("ctypes", "cffi", "mmap", "_ctypes", "_posixsubprocess"), ""),
}
"""Modules with the capability that they need; "" is needed by no plugin."""
_CALLS: Mapping[str, str] = {
    **dict.fromkeys(("os.system", "os.popen", "os.fork", "os.forkpty", "pty.spawn"), _EXEC),
    **dict.fromkeys(("asyncio.create_subprocess_exec", "asyncio.create_subprocess_shell"), _EXEC),
    **dict.fromkeys(("asyncio.open_connection", "asyncio.start_server"), _NETWORK),
    **dict.fromkeys(("eval", "exec", "compile", "__import__", "importlib.import_module"), ""),
    **dict.fromkeys(("marshal.loads", "pickle.loads", "builtins.eval", "builtins.exec"), ""),
}
_PREFIXES = ("os.exec", "os.spawn", "os.posix_spawn")
_SECRETS = re.compile(
    r"\b(?:sk-[A-Za-z0-9_-]{20,}|xox[abprs]-[A-Za-z0-9-]{10,}|gh[pousr]_[A-Za-z0-9]{30,}|AKIA[0-9A-Z]{16}"
    r"|AIza[0-9A-Za-z_-]{30,}|glpat-[\w-]{20,}|\d{8,10}:AA[\w-]{30,})|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
_JOINERS = "\u200c\u200d\ufeff"
"""Characters that other scripts and emoji need; they reorder nothing."""


class ScanFinding(Struct, frozen=True, order=True):
    """A finding in a file of a plugin; ``line`` is 0 for the whole file."""

    file: str
    line: int
    kind: str
    text: str


def scan_folder(folder: Path) -> tuple[Manifest, list[ScanFinding]]:
    """Return the manifest and the findings in a plugin's folder. Raises PluginError without a manifest."""
    manifest = read_manifest(folder)
    found: set[ScanFinding] = set()
    for path, about in files_of(folder, compiled=True):
        if path.startswith(f"{SITE}/"):
            continue
        if about.st_size > _LARGEST:
            found.add(ScanFinding(path, 0, "size", f"has {about.st_size} bytes, which are not scanned"))
            continue
        found.update(_scan_file(path, (folder / path).read_bytes(), manifest))
    return manifest, sorted(found)


def _scan_file(path: str, data: bytes, manifest: Manifest) -> Iterator[ScanFinding]:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        kind = "is compiled code" if path.endswith((".so", ".pyd", ".dylib", ".dll")) else "is not text"
        yield ScanFinding(path, 0, "binary", f"{kind}, which is not scanned")
        return
    for number, line in enumerate(text.splitlines(), 1):
        if hidden := invisible(line, f"\t\f{_JOINERS}"):
            yield ScanFinding(path, number, "hidden text", f"has the invisible character {hidden}")
        if _SECRETS.search(line):
            yield ScanFinding(path, number, "secret", "looks like a secret; remove and revoke it")
    if path == REQUIREMENTS:
        yield from _requirements(path, text)
    if path.endswith((".py", ".pyi")):
        yield from _code(path, text, manifest)


def _requirements(path: str, text: str) -> Iterator[ScanFinding]:
    try:
        for name, hashes in parse_requirements(text)[1].items():
            if not hashes:
                yield ScanFinding(path, 0, "dependency", f"{name} has no hash; add --hash=sha256:…")
    except PluginError as error:
        yield ScanFinding(path, 0, "dependency", str(error))


def _code(path: str, text: str, manifest: Manifest) -> Iterator[ScanFinding]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        yield ScanFinding(path, 0, "syntax", f"cannot be parsed: {error}")
        return
    for node in ast.walk(tree):
        for name in _imported(node):
            if (needed := _MODULES.get(name.partition(".")[0])) is not None:
                yield from _undeclared(path, node, f"imports {name}", needed, manifest)
        if isinstance(node, ast.Call) and (name := _dotted(node.func)):
            needed = _EXEC if name.startswith(_PREFIXES) else _CALLS.get(name)
            if needed is not None:
                yield from _undeclared(path, node, f"calls {name}", needed, manifest)


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []


def _undeclared(
    path: str, node: ast.AST, what: str, needed: str, manifest: Manifest
) -> Iterator[ScanFinding]:
    line = getattr(node, "lineno", 0)
    if not needed:
        yield ScanFinding(path, line, "code", f"{what}, which can hide what the plugin does")
        return
    declared = manifest.capabilities.network if needed == _NETWORK else manifest.capabilities.exec
    use = "ctx.http" if needed == _NETWORK else "ctx.exec"
    reason = "the confinement refuses it" if declared.enabled else f"capabilities.{needed} is not declared"
    yield ScanFinding(
        path, line, "undeclared" if not declared.enabled else "refused", f"{what}: {reason}; use {use}"
    )


def _dotted(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join(reversed([*parts, node.id])) if isinstance(node, ast.Name) else ""
