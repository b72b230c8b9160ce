"""Markdown for channels: a parser that returns a tree, and a splitter that cuts text to the size of messages.

In: the Markdown of a model. Out: blocks and inlines, or pieces. Imported by channels and the server.
"""

from gateway.markdown.grammar import bound_tables
from gateway.markdown.math import formula_of
from gateway.markdown.parse import parse_markdown
from gateway.markdown.split import split_markdown
from gateway.markdown.tree import (
    Block,
    Break,
    Code,
    CodeBlock,
    Emphasis,
    Heading,
    Image,
    Inline,
    Item,
    ItemList,
    Link,
    Math,
    Paragraph,
    Quote,
    Rule,
    Spoiler,
    Strike,
    Strong,
    Table,
    Text,
    Tree,
    inline_text,
    label_of,
    plain_text,
    table_text,
)

__all__ = [
    "Block",
    "Break",
    "Code",
    "CodeBlock",
    "Emphasis",
    "Heading",
    "Image",
    "Inline",
    "Item",
    "ItemList",
    "Link",
    "Math",
    "Paragraph",
    "Quote",
    "Rule",
    "Spoiler",
    "Strike",
    "Strong",
    "Table",
    "Text",
    "Tree",
    "bound_tables",
    "formula_of",
    "inline_text",
    "label_of",
    "parse_markdown",
    "plain_text",
    "split_markdown",
    "table_text",
]
