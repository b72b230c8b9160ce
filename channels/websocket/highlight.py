"""Code with coloured words: Pygments, by CSS class only, loaded with the first code that names a language."""

from __future__ import annotations

import re
from html import escape

# Colouring costs about a microsecond per character and runs in the event loop.
_LONGEST_COLOURED = 20_000
_LANGUAGE = re.compile(r"[\w.+#-]{1,40}", re.ASCII)


def code_html(code: str, language: str = "", title: str = "") -> str:
    """A figure with a caption (``title``, else the language) and the code, escaped and coloured."""
    language = language if _LANGUAGE.fullmatch(language) else ""
    caption = escape(title or language or "text")
    return (
        f'<figure class="code"><figcaption><span>{caption}</span></figcaption>'
        f'<pre tabindex="0"><code>{highlighted(code, language)}</code></pre></figure>\n'
    )


def highlighted(code: str, language: str) -> str:
    """The code as HTML: spans with Pygments' short class names, or plain when the language is unknown."""
    if not language or len(code) > _LONGEST_COLOURED:
        return escape(code)
    # 40 ms and 4 MB that a gateway which never shows code does not spend.
    from pygments import highlight
    from pygments.formatters.html import HtmlFormatter
    from pygments.lexers import find_lexer_class_by_name
    from pygments.util import ClassNotFound

    try:
        lexer = find_lexer_class_by_name(language)(stripnl=False, ensurenl=False)
    except ClassNotFound:
        return escape(code)
    return highlight(code, lexer, HtmlFormatter(nowrap=True))


def language_of(path: str) -> str:
    """The language a file's name suggests: its ending, which Pygments knows as an alias for most."""
    return path.rpartition(".")[2].lower() if "." in path else ""
