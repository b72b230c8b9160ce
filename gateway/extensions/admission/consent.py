"""Consent: what a plugin can do and which data it gets, in plain words, before it is granted."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from gateway.contract.errors import PluginError
from gateway.extensions.admission.capabilities import FROM_CONFIG, Grant
from gateway.extensions.admission.manifest import Manifest

_FIXED = {
    "llm": "call models, at your cost",
    "messages:read": "see the messages of chats: what users write and what the bot answers",
    "messages:change": "see the messages of chats, and change or answer what users write",
    "tools:block": "see the calls of tools with their arguments, and block them",
    "tools:decide": "see the calls of tools, and allow or refuse them in your place",
    "routes:token": "answer HTTP requests that have the gateway's token, under /plugins/NAME",
    "routes:public": "answer HTTP requests of everyone who reaches the gateway, under /plugins/NAME",
    "send": "write to chats on its own",
    "schedule": "run at the times that it names",
    "docker": "run containers, without network",
}
_FILES = {"read": "read files", "write": "write files", "delete": "delete files"}


def describe(manifest: Manifest, grants: Iterable[Grant] | None = None) -> list[str]:
    """Return one sentence for each grant: all that the manifest declares, unless others are given."""
    listed = manifest.capabilities.grants() if grants is None else grants
    return [describe_grant(manifest, grant) for grant in listed]


def describe_grant(manifest: Manifest, grant: Grant) -> str:
    """Return what a grant allows, in plain words."""
    capabilities = manifest.capabilities
    capability, _, value = grant.partition(":")
    if capability.startswith("filesystem."):
        where = "in the working directory" if value == "workspace" else f"below {value}"
        closed = capabilities.filesystem.restricted
        kept = f", except {', '.join(closed)}" if closed else ""
        return f"{_FILES[capability.removeprefix('filesystem.')]} {where}{kept}"
    if value.startswith(FROM_CONFIG):
        setting = f"its setting {value.removeprefix(FROM_CONFIG)}"
        if capability == "exec":
            return f"run the commands in {setting}"
        return f"connect to the host in {setting} ({', '.join(capabilities.network.methods)})"
    if capability == "network":
        return f"connect to {value} ({', '.join(capabilities.network.methods)})"
    if capability == "exec":
        return f"run the command {value}"
    if grant == "storage":
        return f"keep up to {capabilities.storage_mb} MB of data"
    if grant == "llm" and capabilities.llm.budget is not None:
        return f"call models, at your cost: up to ${capabilities.llm.budget:g} in each conversation"
    return _FIXED[grant].replace("NAME", manifest.name)


def describe_rest(manifest: Manifest) -> Iterator[str]:
    """Yield what a plugin gets or does without a grant."""
    if manifest.events:
        yield f"is notified of {', '.join(manifest.events)}"
    if "transform_system_prompt" in manifest.hooks:
        yield "changes the instructions of the models"
    if manifest.tools:
        yield f"offers models the tools {', '.join(manifest.tools)}; each call asks, unless a rule allows it"
    if manifest.commands:
        yield f"offers users the commands {', '.join(f'/{name}' for name in manifest.commands)}"
    if manifest.page:
        places = {"status": "the status line", "panel": "a panel"}
        yield f"shows text on the chat page, in {' and '.join(places[each] for each in manifest.page)}"
    if manifest.secrets:
        yield f"gets the secrets that you give it: {', '.join(manifest.secrets)}"


def chosen(manifest: Manifest, allowed: Sequence[str]) -> tuple[Grant, ...]:
    """Return the declared grants that ``allowed`` names, whole (``network``) or by value.

    Raises PluginError for a name that matches none.
    """
    declared = tuple(manifest.capabilities.grants())
    for name in allowed:
        if not any(_names(name, grant) for grant in declared):
            listed = f"it declares {', '.join(declared)}" if declared else "it declares none"
            raise PluginError(f"--allow {name}: plugin {manifest.name!r} does not declare this; {listed}")
    return tuple(grant for grant in declared if any(_names(name, grant) for name in allowed))


def added(manifest: Manifest, before: Collection[Grant]) -> tuple[Grant, ...]:
    """Return the declared grants that are not among those before."""
    return tuple(grant for grant in manifest.capabilities.grants() if grant not in before)


def _names(name: str, grant: Grant) -> bool:
    return grant == name or grant.startswith((f"{name}:", f"{name}."))
