"""Plugins that are started, replaced and stopped while the gateway runs: in real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from gateway import PluginError
from gateway.extensions.admission.admission import Admission
from gateway.extensions.admission.packages.installer import Installer
from gateway.extensions.confined.plugin import ConfinedPlugin
from gateway.extensions.process.kernel import family
from gateway.extensions.process.supervisor import ProcessSupervisor
from gateway.settings.layers.own_files import OwnFiles
from gateway.store import schema as t
from gateway.testing.chat import Chat
from gateway.testing.fake_models.script import Gate, Reply, Say, Use
from gateway.testing.plugins import approve, running
from gateway.testing.served import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="confinement needs Linux"),
]

MANIFEST = """\
api: 1
name: greeter
version: {version}
commands: [greet]
{more}"""
CODE = """\
import asyncio, os, sys
from trunkline_plugin import plugin

VERSION = {version!r}


@plugin
async def greeter(ctx):
    {begin}

    async def greet(args, call):
        return f"{{VERSION}} greets"

    return {{"commands": [{{"name": "greet", "description": "Greet", "execute": greet}}], {offers}}}
"""
PATIENT = {"activate_timeout_ms": 60_000, "hook_timeout_ms": 60_000}


def write(folder: Path, version: str, *, begin: str = "pass", offers: str = "", more: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plugin.yml").write_text(MANIFEST.format(version=version, more=more))
    (folder / "main.py").write_text(CODE.format(version=version, begin=begin, offers=offers))
    return folder


def greeter(chat: Chat) -> ConfinedPlugin:
    found = chat.gateway.registry.get("greeter")
    assert isinstance(found, ConfinedPlugin)
    return found


def process(chat: Chat) -> ProcessSupervisor:
    return cast("ProcessSupervisor", greeter(chat).process)


async def change(chat: Chat, tmp_path: Path, version: str, **parts: str) -> None:
    """Write another version and approve it, without grants for what it adds."""
    write(tmp_path / "plugin", version, **parts)
    await asyncio.to_thread(approve, chat.gateway.settings, tmp_path / "plugin")


async def reloads(chat: Chat) -> list[str]:
    """Return the reloads in the audit log."""
    await chat.gateway.parts.actions.flush()
    actions = await chat.gateway.parts.actions.latest("greeter")
    return [action.value for action in actions if action.action == "plugin.reload"]


async def apply(chat: Chat, seconds: float = 60) -> str:
    return (await chat.gateway.live_plugins.apply("greeter", seconds)).outcome


async def test_001_35_an_edited_plugin_is_replaced_without_a_restart(tmp_path: Path) -> None:
    async with running(write(tmp_path / "source", "1.0"), tmp_path, options=PATIENT) as chat:
        assert (await chat.say("/greet")).text == "1.0 greets"
        first = process(chat)
        chat.gateway.processes.own = OwnFiles()  # as if the settings had named the plugin only now
        assert await apply(chat) == "unchanged"
        assert tmp_path / "plugin" in chat.gateway.processes.own.guarded, "programs cannot change it"
        await change(chat, tmp_path, "2.0")
        assert await apply(chat) == "replaced"
        assert (await chat.say("/greet")).text == "2.0 greets"
        await until(lambda: first.state == "stopped")
        assert await reloads(chat) == ["replaced"]


@pytest.mark.parametrize(
    ("parts", "seconds", "told"),
    [
        ({"begin": "raise ValueError('no luck')"}, 60, "no luck"),
        ({"begin": "await asyncio.sleep(3600)"}, 1, "was not ready within 1 s"),
        ({"more": "tools: [none]\n"}, 60, "lists 'none', which its code does not have"),
        ({"more": "name: other\n"}, 60, "is written twice"),
        ({"more": "hooks: [transform_user_input]\ncapabilities: {messages: read}\n"}, 60, "is not granted"),
    ],
)
async def test_001_35_a_generation_that_fails_leaves_the_one_before(
    tmp_path: Path, parts: dict[str, str], seconds: float, told: str
) -> None:
    async with running(write(tmp_path / "source", "1.0"), tmp_path, options=PATIENT) as chat:
        before = process(chat)
        if "name:" in parts.get("more", ""):
            write(tmp_path / "plugin", "2.0", **parts)
        else:
            await change(chat, tmp_path, "2.0", **parts)
        with pytest.raises(PluginError, match=told):
            await apply(chat, seconds)
        assert process(chat) is before
        assert (await chat.say("/greet")).text == "1.0 greets"
        (reload,) = await reloads(chat)
        assert reload.startswith("failed: ")


async def test_a_new_generation_follows_the_jobs_at_its_own_times(tmp_path: Path) -> None:
    more = 'schedule: [{name: tick, cron: "0 0 CRON 1 *"}]\ncapabilities: {schedule: true}\n'
    offers = '"schedule": {"tick": lambda job: print("ticked", job.key, file=sys.stderr, flush=True)}'
    first = write(tmp_path / "source", "1.0", offers=offers, more=more.replace("CRON", "1"))
    async with running(first, tmp_path, options=PATIENT) as chat:
        store = chat.gateway.parts.store

        async def times() -> list[str]:
            return await store.read(lambda c: [row.times for row in c.execute(t.plugin_job.select())])

        async def reached(times_: str) -> None:
            async with asyncio.timeout(60):
                while await times() != [times_]:
                    await asyncio.sleep(0.02)

        await reached("0 0 1 1 * UTC")
        await change(chat, tmp_path, "2.0", offers=offers, more=more.replace("CRON", "2"))
        assert await apply(chat) == "replaced"
        await reached("0 0 2 1 * UTC")
        assert await greeter(chat).run_job("tick", 7)
        await until(lambda: b"ticked tick 7" in process(chat).record.stderr()[0])


async def test_what_an_update_adds_waits_for_consent(tmp_path: Path) -> None:
    source = write(tmp_path / "source", "1.0", more="capabilities: {storage_mb: 1}\n")
    async with running(source, tmp_path, options=PATIENT) as chat:
        await change(chat, tmp_path, "2.0", more="capabilities: {storage_mb: 1, send: true}\n")
        assert await apply(chat) == "replaced"
        assert greeter(chat).admitted.grants == {"storage"}
        await asyncio.to_thread(approve, chat.gateway.settings, tmp_path / "plugin", ("send",))
        assert await apply(chat) == "replaced"
        assert greeter(chat).admitted.grants == {"storage", "send"}


async def test_a_quarantine_ends_when_the_plugin_is_enabled_again(tmp_path: Path) -> None:
    async with running(write(tmp_path / "source", "1.0"), tmp_path, options=PATIENT) as chat:
        found = process(chat)
        cast("Any", found)._pauses = (0.0,)
        for deaths in range(1, 6):
            await until(lambda: found.state == "running")
            assert found.pid is not None
            os.kill(found.pid, signal.SIGKILL)
            await until(lambda deaths=deaths: found.record.deaths == deaths)
        await until(lambda: found.state == "quarantined")
        assert await apply(chat) == "replaced"
        assert (await chat.say("/greet")).text == "1.0 greets"
        assert process(chat).record.deaths == 5


async def test_files_that_were_changed_are_not_started_after_a_death(tmp_path: Path) -> None:
    async with running(write(tmp_path / "source", "1.0"), tmp_path, options=PATIENT) as chat:
        found = process(chat)
        write(tmp_path / "plugin", "2.0")
        assert found.pid is not None
        os.kill(found.pid, signal.SIGKILL)
        await until(lambda: found.state == "stopped")
        assert "was changed after its approval" in found.reason
        await change(chat, tmp_path, "2.0")
        assert await apply(chat) == "replaced"
        assert (await chat.say("/greet")).text == "2.0 greets"


async def test_a_disabled_plugin_is_stopped_and_started_again(tmp_path: Path) -> None:
    async with running(write(tmp_path / "source", "1.0"), tmp_path, options=PATIENT) as chat:
        file = tmp_path / "trunkline.json"
        enabled = file.read_text()
        stopped = process(chat)
        file.write_text(enabled.replace('"plugins": {', '"plugins": {"disabled": ["greeter"], '))
        assert await apply(chat) == "stopped"
        assert stopped.state == "stopped"
        assert chat.gateway.registry.get("greeter") is None
        assert await apply(chat) == "disabled"
        file.write_text(enabled)
        assert await apply(chat) == "started"
        assert (await chat.say("/greet")).text == "1.0 greets"
        # What comes with the gateway is not in the list, and stays.
        assert (await chat.gateway.live_plugins.apply("commands")).outcome == "unchanged"


async def test_a_required_plugin_is_not_stopped(tmp_path: Path) -> None:
    team = {"plugins": {"required": ["greeter"]}}
    async with running(write(tmp_path / "source", "1.0"), tmp_path, options=PATIENT, teams=team) as chat:
        file = tmp_path / "trunkline.json"
        file.write_text(
            file.read_text().replace(
                '"plugins": {"enabled"', '"plugins": {"disabled": ["greeter"], "enabled"'
            )
        )
        with pytest.raises(PluginError, match="must not be disabled"):
            await apply(chat)
        assert (await chat.say("/greet")).text == "1.0 greets"


async def test_a_turn_ends_with_the_generation_that_it_began_with(tmp_path: Path) -> None:
    held = """\
async def slow(args, call):
        print("waiting", file=sys.stderr, flush=True)
        while not os.path.exists(os.path.join(os.path.dirname(__file__), "go")):
            await asyncio.sleep(0.02)
        return VERSION"""
    offers = '"tools": [{"name": "slow", "description": "Slow", "execute": slow}]'
    parts = {"begin": held, "offers": offers, "more": "tools: [slow]\n"}
    source = write(tmp_path / "source", "1.0", **parts)
    async with running(source, tmp_path, options=PATIENT, permissions={"slow": "allow"}) as chat:
        old = process(chat)
        chat.model.then(Reply((Use("slow", "{}"),), "tools"), Reply((Say("one"),)))
        first = await chat.accept("begin", "a")
        await until(lambda: b"waiting" in old.record.stderr()[0])
        await change(chat, tmp_path, "2.0", **parts)
        assert await apply(chat) == "replaced"
        assert process(chat) is not old
        assert old.state == "running"
        (tmp_path / "plugin/go").touch()  # No digest is compared until the next start.
        assert (await chat.answer(first, "a")).text == "one"
        assert "1.0" in repr(chat.model.calls[1].messages)
        await until(lambda: old.state == "stopped")


async def test_a_replaced_version_that_a_turn_holds_is_started_again_after_its_death(tmp_path: Path) -> None:
    slow = """\
async def slow(args, call):
        print("waiting", file=sys.stderr, flush=True)
        await asyncio.sleep(3600 if args["wait"] else 0)
        return VERSION"""
    offers = '"tools": [{"name": "slow", "description": "Slow", "execute": slow}]'
    parts = {"begin": slow, "offers": offers, "more": "tools: [slow]\n"}
    source = write(tmp_path / "source", "1.0", **parts)
    async with running(source, tmp_path, options=PATIENT, permissions={"slow": "allow"}) as chat:
        await install(chat, tmp_path)
        file = tmp_path / "trunkline.json"
        file.write_text(file.read_text().replace(str(tmp_path / "plugin"), "greeter"))
        assert await apply(chat) == "replaced"
        old, gate = process(chat), Gate(asyncio.Event())
        chat.model.then(
            Reply((Use("slow", '{"wait": true}'),), "tools"),
            Reply((gate, Use("slow", '{"wait": false}')), "tools"),
            Reply((Say("done"),)),
        )
        first = await chat.accept("begin", "a")
        await until(lambda: b"waiting" in old.record.stderr()[0])
        write(tmp_path / "plugin", "2.0", **parts)
        await install(chat, tmp_path)
        assert await apply(chat) == "replaced"
        assert old.pid is not None
        os.kill(old.pid, signal.SIGKILL)
        await until(lambda: old.record.deaths == 1 and old.state == "running")
        gate.opened.set()
        assert (await chat.answer(first, "a")).text == "done"
        last = repr(chat.model.calls[2].messages)
        assert "does not run" in last
        assert "1.0" in last
        assert "2.0" not in last
        await until(lambda: old.state == "stopped")


async def install(chat: Chat, tmp_path: Path) -> None:
    """Install what is in the folder, in place of an earlier version."""

    def install() -> None:
        installer = Installer(Admission(chat.gateway.settings), {})
        with installer.prepare(str(tmp_path / "plugin")) as prepared:
            installer.place(prepared, (), "test")

    await asyncio.to_thread(install)


async def test_replacements_and_kills_end_no_turn_and_lose_no_message(tmp_path: Path) -> None:
    """Four chats go on while the plugin is replaced, and every second new process is killed at its start."""
    parts = {
        "begin": "async def prompt(text, turn):\n        return VERSION",
        "offers": '"hooks": {"transform_system_prompt": prompt}',
        "more": "hooks: [transform_system_prompt]\n",
    }
    hanging = {**parts, "begin": f"{parts['begin']}\n    await asyncio.sleep(3600)"}
    async with running(write(tmp_path / "source", "1", **parts), tmp_path, options=PATIENT) as chat:
        going = True
        said: dict[str, list[str]] = {session: [] for session in "abcd"}

        async def talk(session: str) -> None:
            while going or len(said[session]) < 5:
                text = f"{session} {len(said[session])}"
                said[session].append(text)
                assert (await chat.say(text, session)).text == f"You said: {text}"

        generations = [process(chat)]
        async with asyncio.TaskGroup() as tasks:
            for session in said:
                tasks.create_task(talk(session))
            for version in range(2, 8):
                if version % 2:
                    await change(chat, tmp_path, str(version), **hanging)
                    replacing = asyncio.ensure_future(apply(chat))
                    os.kill(await newcomer(chat), signal.SIGKILL)
                    with pytest.raises(PluginError, match="did not start"):
                        await replacing
                else:
                    await change(chat, tmp_path, str(version), **parts)
                    assert await apply(chat) == "replaced"
                    generations.append(process(chat))
            going = False
        assert process(chat) is generations[-1]
        *replaced, last = generations
        await until(lambda: {each.state for each in replaced} == {"stopped"})
        assert last.state == "running"
        asked = [(call.messages[-1].text, call.options.system_prompt) for call in chat.model.calls]
        for session, texts in said.items():
            assert [text for text, _ in asked if text.startswith(session)] == texts
        assert {prompt.strip() for _, prompt in asked} <= {"1", "2", "4", "6"}
        assert asked[-1][1].strip() == "6"


async def newcomer(chat: Chat) -> int:
    """Return the id of the process that is being started beside the one that runs."""
    zygote = chat.gateway.processes.launcher.zygote
    assert zygote is not None
    before = {*family(zygote)}
    await until(lambda: bool({*family(zygote)} - before))
    return ({*family(zygote)} - before).pop()
