"""Contract suites: the checks that every provider has to pass, and the runs of those checks.

In: a provider with its fake server. Out: assertions for tests, and results for ``trunkline providers test``.
Tests and plugins' contract trials may import it.
"""
