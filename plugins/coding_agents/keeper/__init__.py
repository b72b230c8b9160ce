"""The keeper of one terminal: a small process that runs a program and outlives the gateway.

It opens a terminal, starts the program in it, keeps its output, and serves two Unix sockets: ``keeper.sock``
for the gateway, and ``inside/sibling.sock`` for the program's helpers in the sandbox, whose connections the
gateway answers. The gateway starts ``__main__.py`` with an isolated Python; it imports ``wire`` and nothing
else of this package. The package uses few modules of the standard library, because each session pays for
their memory, and imports nothing after the start, because an upgrade may remove the files.
"""
