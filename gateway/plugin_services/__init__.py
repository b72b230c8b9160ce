"""Services of confined plugins: their grants, with the questions for them, their audit log, and model calls.

In: the calls that a plugin's broker lets through, and decisions of admins. Out: durable grants, rows of the
audit log, and answers of models. Imported by ``host`` and everything above it; the broker sees the protocols
of ``gateway.extensions.broker``.
"""

from gateway.plugin_services.actions import Action, Decision, PluginActions, read_actions
from gateway.plugin_services.bundles import Parts, check_servers, read_parts
from gateway.plugin_services.completions import PluginCompletions
from gateway.plugin_services.grant_questions import GrantQuestions
from gateway.plugin_services.resolver import OpenServices, Resolver

__all__ = [
    "Action",
    "Decision",
    "GrantQuestions",
    "OpenServices",
    "Parts",
    "PluginActions",
    "PluginCompletions",
    "Resolver",
    "check_servers",
    "read_actions",
    "read_parts",
]
