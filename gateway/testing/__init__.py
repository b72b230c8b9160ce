"""Tools for tests: fake model servers, fake platforms, contract suites, and a gateway to chat with.

In: plugins, channels, providers and scripts. Out: running gateways, requests and answers. It is the
distribution ``trunkline-testing``, for authors of channels and plugins too; the gateway itself does not
import it.
"""
