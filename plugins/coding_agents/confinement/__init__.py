"""The sandbox of coding agents: which files, hosts and keys a session reaches.

In: the facts of a session. Out: arguments before those of its program, variables, and an answer to what
comes through its keeper. ``profile`` decides about files and limits, ``proxy`` is the gateway's side of the
network, and ``inside`` the side in the sandbox. The kernel's part is ``ctx.processes.program_prefix``.
"""
