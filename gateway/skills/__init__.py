"""Skills: instructions for certain tasks, of which the model knows the descriptions and loads the rest.

In: folders with a ``SKILL.md``, beside the settings, in ``.agents/skills`` and of plugins. Out: a list in the
system prompt, the tools ``skill`` and ``skill_file``, and fewer tools while a skill with ``allowed-tools`` is
in use. ``app``, the CLI and ``plugin_services`` import it.
"""

from gateway.skills.library import FoundSkill, SkillLibrary, SkillSource, skills_of_plugin
from gateway.skills.skill import (
    SKILL_FILE,
    Skill,
    ToolRule,
    read_below,
    read_skill,
)
from gateway.skills.tools import SkillTools

__all__ = [
    "SKILL_FILE",
    "FoundSkill",
    "Skill",
    "SkillLibrary",
    "SkillSource",
    "SkillTools",
    "ToolRule",
    "read_below",
    "read_skill",
    "skills_of_plugin",
]
