"""The command line ``trunkline``.

``COMMANDS`` names every command; its module is imported when it runs or its help is shown. ``chat`` has
the terminal chat, ``doctor`` the checks, ``models`` the commands for models and providers, ``commands`` the
others.

In: arguments of a shell. Out: text or JSON on stdout, errors on stderr, an exit status. Only ``__main__`` and
tests import it.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from gateway.cli.command_group import Command, Entry, Group, ReportedGroup, channels_with
from gateway.version import VERSION

_PASS_ON: Mapping[str, Any] = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
}

COMMANDS: Mapping[str, Entry] = {
    "run": Command("run:run", "Run the gateway until Ctrl-C or SIGTERM"),
    "setup": Command(
        "setup:setup", "Set up a model, a chat platform, your own access and a service, step by step"
    ),
    "chat": Command("chat.command:chat", "Chat with a running gateway; without SESSION in a new session"),
    "send": Command("chat.send:send", "Send one message to a running gateway and print the answer"),
    "search": Command(
        "commands.sessions:search", "Find messages and titles by their words, newest or best match first"
    ),
    "doctor": Command(
        "doctor.command:doctor", "Check settings, store, port, channels, model and machine, with advice"
    ),
    "logs": Command(
        "commands.logs:logs", "Print the log of the gateway: turns, retries, warnings and errors"
    ),
    "events": Command(
        "commands.logs:events",
        "Print the events of the running gateway as they happen: turns, tools, channels, plugins",
    ),
    "why": Command("why:why", "Explain why a message was answered or not"),
    "usage": Command("commands.usage:usage", "Show tokens and cost of model calls, and the state of budgets"),
    "audit": Command(
        "commands.approvals:audit", "Show who decided what: approvals, answers, pairing, shares"
    ),
    "nodes": Group(
        "List, drain and resume the nodes of the cluster; replace their certificate",
        {
            "list": Command("commands.nodes:list_", "List the nodes of the cluster with their states"),
            "drain": Command(
                "commands.nodes:drain",
                "Let a node hand over to another one and stay on standby until it is resumed",
            ),
            "resume": Command("commands.nodes:resume", "Let a drained node take over again"),
            "rotate": Command("commands.nodes:rotate", "Replace the certificate of the link between nodes"),
        },
        default="list",
    ),
    "backup": Command("commands.backup:backup", "Back up the database and the data directory to one archive"),
    "restore": Command("commands.backup:restore", "Restore a backup"),
    "auth": Group(
        "Sign in to model providers; list the sources of keys",
        {
            "login": Command("models.auth:login", "Sign in to a provider, or store its key"),
            "logout": Command("models.auth:logout", "Delete the stored key or login of a provider"),
            "list": Command(
                "models.auth:list_", "List the providers that have a key, its sources, and the one in use"
            ),
        },
    ),
    "sessions": Group(
        "List, show, replay, export, share, undo and delete sessions; their errors, tool calls and feedback",
        {
            "list": Command("commands.sessions:list_", "List sessions, newest first"),
            "show": Command("commands.sessions:show", "Print the messages of a session"),
            "errors": Command(
                "commands.sessions:errors", "List the errors in a session's answers, oldest first"
            ),
            "tools": Command(
                "commands.sessions:tools",
                "List the tool calls of a session with their outcomes, oldest first",
            ),
            "feedback": Command(
                "commands.sessions:feedback", "List the feedback of users on answers, newest first"
            ),
            "replay": Command("commands.sessions:replay", "Replay a session with its original timing"),
            "export": Command(
                "commands.sessions:export",
                "Write a session as Markdown, or as JSON with all its data; also the sessions of its tasks",
            ),
            "share": Command("commands.sessions:share", "Create a public read-only page of a session"),
            "shares": Command("commands.sessions:shares", "List the public pages of sessions, newest first"),
            "unshare": Command("commands.sessions:unshare", "Revoke a public page, or all of a session"),
            "undo": Command("commands.sessions:undo", "Hide the last message of a session and its answer"),
            "redo": Command(
                "commands.sessions:redo",
                "Restore what was undone last, unless a message was answered since",
            ),
            "delete": Command("commands.sessions:delete", "Delete a session with all its messages"),
        },
    ),
    "channels": Group(
        "List channels, check their status, and list the rooms they have seen",
        {
            "list": Command(
                "commands.channels:list_",
                "List the channels that can be configured, and where they come from",
            ),
            "rooms": Command(
                "commands.channels:rooms",
                "List the chats that channels have seen, the latest first, with ids for the settings",
            ),
            "status": Command(
                "commands.channels:status",
                "Show the state of each channel of the running gateway; exit with 1 unless all work",
            ),
        },
    ),
    "providers": Group(
        "List and test model providers",
        {
            "list": Command(
                "models.provider_info:list_", "List the providers with endpoint, key source and abilities"
            ),
            "test": Command(
                "models.provider_ping:probe",
                "Send each provider one short request, or test its adapter against a fake server",
            ),
        },
    ),
    "models": Group(
        "List models and show one",
        {
            "list": Command("models.models:list_", "List the models of the configured providers"),
            "info": Command("models.models:info", "Show limits, abilities, prices and fallbacks of a model"),
        },
    ),
    "agents": Group(
        "List the agents",
        {
            "list": Command(
                "models.agents:list_", "List the agents with their models, tools, fallbacks and channels"
            ),
        },
    ),
    "dead": Group(
        "List, show, replay and drop dead letters",
        {
            "list": Command("commands.dead_letters:list_", "List dead letters, newest first"),
            "causes": Command("commands.dead_letters:causes", "Group dead letters by cause"),
            "show": Command(
                "commands.dead_letters:show", "Print one dead letter with the traceback of its failure"
            ),
            "replay": Command(
                "commands.dead_letters:replay", "Process messages again, and delete their error notices"
            ),
            "drop": Command(
                "commands.dead_letters:drop", "Delete dead letters; the notices in their sessions remain"
            ),
        },
    ),
    "pair": Group(
        "List, allow and remove users",
        {
            "list": Command(
                "commands.pairing:list_",
                "List waiting users with their codes, and allowed users, newest first",
            ),
            "approve": Command("commands.pairing:approve", "Allow the user to whom the bot sent this code"),
            "revoke": Command(
                "commands.pairing:revoke", "Remove the access of a user, with account links and moved chats"
            ),
        },
    ),
    "approvals": Group(
        'List and revoke "always" approvals',
        {
            "list": Command(
                "commands.approvals:list_",
                'List the "always" approvals of tool calls and plugin capabilities, newest first',
            ),
            "revoke": Command(
                "commands.approvals:revoke",
                "Revoke approvals; the next such call, or use of a capability, asks again",
            ),
        },
    ),
    "db": Group(
        "Find, inspect and upgrade the database",
        {
            "upgrade": Command("commands.db:upgrade", "Upgrade the database to the schema of this version"),
            "status": Command(
                "commands.db:status",
                "Show the state of the database; exit with 1 unless this version can use it",
            ),
            "check": Command("commands.db:check", "Check the whole database; exit with 1 if it is damaged"),
            "path": Command(
                "commands.db:path",
                "Print the path of the database, or the URL of its server without the password",
            ),
        },
    ),
    "plugin": Group(
        "List, install, approve, enable, check and pack plugins",
        {
            "list": Command(
                "plugins.listing:list_",
                "List the plugins: those that are enabled, and all with a manifest that are found",
            ),
            "info": Command(
                "plugins.listing:info",
                "Show a plugin: its origin, what it may do, what was granted by whom, and what it offers",
            ),
            "search": Command(
                "plugins.searching:search",
                "Find plugins in the indexes of the settings, with what each may do; without WORD all",
            ),
            "install": Command(
                "plugins.installing:install",
                "Install a plugin: show what it may do, ask, and record its content in the lock",
            ),
            "update": Command(
                "plugins.installing:update",
                "Install the newest version of a plugin: show the difference, and ask for new capabilities",
            ),
            "approve": Command(
                "plugins.installing:approve",
                "Approve the present content of a plugin in a folder, and grant what it may do",
            ),
            "uninstall": Command(
                "plugins.installing:uninstall", "Remove an installed plugin, its approval and its grants"
            ),
            "enable": Command(
                "plugins.switching:enable",
                "Enable a plugin in the settings file; a running gateway starts it at once",
            ),
            "disable": Command(
                "plugins.switching:disable",
                "Disable a plugin in the settings file; a running gateway stops it at once",
            ),
            "doctor": Command(
                "doctor.command:plugin_doctor",
                "Check that the enabled plugins load and work, and that no two have one command",
            ),
            "trace": Command(
                "plugins.tracing:trace",
                "Show each use of a capability by a plugin, granted or denied, and its starts and deaths",
            ),
            "logs": Command(
                "plugins.tracing:logs",
                "Show what a confined plugin wrote to stderr: the last 64 KiB, of the running gateway",
            ),
            "new": Command(
                "plugins.authoring:new", "Create a folder with a new plugin: manifest, code, test and README"
            ),
            "dev": Command(
                "plugins.developing:dev",
                "Run a separate gateway with a plugin, reload the plugin at each save, and print what it "
                "does",
            ),
            "test": Command(
                "plugins.developing:run_tests",
                "Run the tests in a plugin's folder with pytest; the plugin is confined in them",
            ),
            "scan": Command(
                "plugins.authoring:scan",
                "Search a plugin's code for undeclared access; exit with 1 if any is found",
            ),
            "pack": Command(
                "plugins.authoring:pack",
                "Pack a plugin's folder as a wheel; the same files always give the same bytes",
            ),
            "config": Command(
                "plugins.configuring:config_",
                "Show the settings of a plugin with their defaults, or set some in the settings file",
            ),
            "secret": Group(
                "Set and unset the secrets of a plugin",
                {
                    "set": Command(
                        "plugins.switching:set_secret",
                        "Store a secret of a plugin; the value is read from the terminal or from stdin",
                    ),
                    "unset": Command("plugins.switching:unset_secret", "Delete a stored secret of a plugin"),
                },
            ),
        },
    ),
    "skills": Group(
        "List, show, add and check skills",
        {
            "list": Command(
                "plugins.skills:list_", "List the skills that are found, and why one cannot be used"
            ),
            "show": Command("plugins.skills:show", "Print a skill: its limits, instructions and files"),
            "add": Command("plugins.skills:add", "Copy a skill to the folder skills beside the settings"),
            "check": Command(
                "plugins.skills:check", "Check skills in folders; exit with 1 and every mistake"
            ),
        },
    ),
    "mcp": Group(
        "List, add, test and approve MCP servers and their tools",
        {
            "list": Command(
                "mcp.servers:list_",
                "List the MCP servers with their states and tools",
            ),
            "add": Command(
                "mcp.servers:add",
                "Add an MCP server to the settings, start it once, and approve the tools that it lists",
            ),
            "test": Command(
                "mcp.servers:probe",
                "Start an MCP server, list its tools and end it; exit with 1 if that fails",
            ),
            "login": Command(
                "mcp.servers:login", "Log in at a remote MCP server in the browser, and list its tools"
            ),
            "tools": Command(
                "mcp.servers:tools",
                "List the tools of an MCP server, with the difference of those that wait for an approval",
            ),
            "approve": Command(
                "mcp.servers:approve",
                "Approve changed and new tools of an MCP server as they are now; shows the difference",
            ),
        },
    ),
    "config": Group(
        "Check, show and describe the settings",
        {
            "check": Command(
                "commands.config:check",
                "Check the settings of all layers; exit with 2 and every mistake if they are wrong",
            ),
            "show": Command(
                "commands.config:show", "List the settings in effect with their sources, secrets masked"
            ),
            "set": Command("commands.config:set_", "Change a setting in the settings file"),
            "unset": Command("commands.config:unset", "Remove a setting from the settings file"),
            "schema": Command("commands.config:schema", "Print the JSON schema of the settings, for editors"),
        },
    ),
    "dev": Group(
        "Run fake platforms, to test a channel without an account",
        {
            "fake": Command(
                "commands.channels:fake",
                "Run a fake platform with a web page to send messages as its users",
                **_PASS_ON,
            ),
        },
    ),
    **{
        platform: Group(
            f"Register the app with {platform.title()}",
            {
                "manifest": Command(
                    "commands.channels:manifest",
                    "Print the registration of the app as JSON, with the commands of the configured plugins",
                )
            },
        )
        for platform in channels_with("manifest")
    },
    "version": Command("version:version", "Print the version"),
}


class _Root(ReportedGroup):
    def __init__(self, **options: Any) -> None:
        super().__init__(COMMANDS, **options)


app = typer.Typer(
    name="trunkline",
    cls=_Root,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def print_version(requested: bool) -> None:
    """Print the version and end the command, if that is requested."""
    if requested:
        typer.echo(f"Trunkline {VERSION} (Python {platform.python_version()})")
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    _version: Annotated[
        bool,
        typer.Option("--version", "-V", help="Print the version.", callback=print_version, is_eager=True),
    ] = False,
) -> None:
    """A self-hosted chat bot gateway: connect one bot to every chat platform."""
    # rich reads this variable; typer does not.
    if os.environ.get("NO_COLOR"):
        ctx.color = False
