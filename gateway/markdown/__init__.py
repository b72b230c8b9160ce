"""Markdown for channels: as a tree that their renderers walk, and cut into pieces that fit."""
