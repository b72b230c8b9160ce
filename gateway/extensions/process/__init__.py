"""Confined processes: how they are started, limited, watched, restarted and talked to.

In: a profile, and what to run under it: the code of a plugin, a script, or a program. Out: a process that the
kernel confines, and a connection to it. Nothing here knows the API of plugins; nothing is started, and no
module is imported, before the first confined process is needed.
"""
