"""Markdown for channels: a parser that returns a tree, and a splitter that cuts text to the size of messages.

In: the Markdown of a model. Out: blocks and inlines, or pieces. Imported by channels and the terminal chat.
"""

from gateway.markdown.grammar import bound_tables, stays_text
from gateway.markdown.links import bare_addresses, host_of, names_another_host
from gateway.markdown.math import GROWING, add_math, formula_of, is_display
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
    "GROWING",
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
    "Strike",
    "Strong",
    "Table",
    "Text",
    "Tree",
    "add_math",
    "bare_addresses",
    "bound_tables",
    "formula_of",
    "host_of",
    "inline_text",
    "is_display",
    "label_of",
    "names_another_host",
    "parse_markdown",
    "plain_text",
    "split_markdown",
    "stays_text",
    "table_text",
]
