"""Why: for any message, the proof of what happened to it, in one sentence, one line and one table.

In: the stored rows of a message, and the turn that runs. Out: an explanation, which the API, the command line
and ``/why`` show, and the replay of messages that failed for one reason. Imported by the commands, the
server and the command line.
"""

from gateway.why.explanation import Choice, Explanation, SameCause, Subject
from gateway.why.replays import ReplayPlan, Replays, ReplayState
from gateway.why.service import NOT_YOURS, Why, explain_stored
from gateway.why.stations import Station
from gateway.why.verdict import Action, Verdict
from gateway.why.words import Language

__all__ = [
    "NOT_YOURS",
    "Action",
    "Choice",
    "Explanation",
    "Language",
    "ReplayPlan",
    "ReplayState",
    "Replays",
    "SameCause",
    "Station",
    "Subject",
    "Verdict",
    "Why",
    "explain_stored",
]
