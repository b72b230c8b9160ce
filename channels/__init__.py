"""The channels: one folder each, all of the same shape."""
