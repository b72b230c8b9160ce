"""What tests are written with: fake model servers, a fake platform, and a gateway to chat with.

It comes with the gateway so that authors of channels and plugins have it too; the gateway itself imports
none of it.
"""
