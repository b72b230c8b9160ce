"""The channels: one folder each, all of the same shape.

In: events of a platform. Out: messages for the gateway, and its answers on the platform. The gateway loads
them by name; a channel imports public modules of the gateway, and never another channel.
"""
