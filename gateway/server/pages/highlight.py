"""Syntax highlighting by Pygments with CSS classes only; loaded with the first code that names a language."""

from __future__ import annotations

import re
from html import escape
from io import StringIO
from itertools import islice

_LONGEST_HIGHLIGHTED = 20_000
"""Maximum characters of highlighted code; longer code is shown plain."""
_MAX_TOKENS = 3_000
"""Maximum number of highlighted tokens; the rest is plain, as each costs about 7 µs in the event loop."""
_LANGUAGE = re.compile(r"[\w.+#-]{1,40}", re.ASCII)


def code_html(code: str, language: str = "", title: str = "") -> str:
    """Return a figure with a caption (``title``, else the language) and the code, escaped and highlighted."""
    language = language if _LANGUAGE.fullmatch(language) else ""
    caption = escape(title or language or "text")
    return (
        f'<figure class="code"><figcaption><span>{caption}</span></figcaption>'
        f'<pre tabindex="0"><code>{highlighted(code, language)}</code></pre></figure>\n'
    )


def highlighted(code: str, language: str) -> str:
    """Return the code as HTML: spans with Pygments' short class names, or plain if the language is
    unknown."""
    if not language or len(code) > _LONGEST_HIGHLIGHTED:
        return escape(code)
    # 40 ms and 4 MB, only for gateways that show code.
    from pygments.formatters.html import HtmlFormatter
    from pygments.lexers import find_lexer_class_by_name
    from pygments.util import ClassNotFound

    try:
        lexer = find_lexer_class_by_name(language)(stripnl=False, ensurenl=False)
    except ClassNotFound:
        return escape(code)
    tokens = list(islice(lexer.get_tokens(code), _MAX_TOKENS + 1))
    if len(tokens) > _MAX_TOKENS:
        while tokens and not tokens[-1][1].endswith("\n"):
            tokens.pop()
    shown = "".join(token for _, token in tokens)
    if not code.startswith(shown):  # a byte order mark or line ends that Pygments changed
        return escape(code)
    output = StringIO()
    formatter: HtmlFormatter[str] = HtmlFormatter(nowrap=True)
    formatter.format(tokens, output)
    return output.getvalue() + escape(code[len(shown) :])


def language_of(path: str) -> str:
    """Return the language suggested by a file's suffix, which Pygments knows as an alias in most cases."""
    return path.rpartition(".")[2].lower() if "." in path else ""
