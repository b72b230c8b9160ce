"""Fake model servers: each vendor's protocol on a real socket, with answers that follow a script.

In: scripted replies, and requests of providers. Out: streams, errors and tokens as the vendors send them.
Fakes, tests and contract suites may import it.
"""
