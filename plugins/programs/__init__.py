"""Programs that plugins run: what is known of them, their environment, their processes, and a safe git.

In: facts, variables and arguments. Out: programs that leave no process behind, and their output. This is a
library, not a plugin: ``cli_backends`` and ``coding_agents`` import it, and it imports no plugin.
"""
