"""HTML of problem statements as plain text."""

import re
from html.parser import HTMLParser

_BLOCKS = frozenset(
    ("p", "div", "section", "center", "ul", "ol", "table", "tr", "pre", "blockquote", "figure",
     "hr", "h1", "h2", "h3", "h4", "h5", "h6")
)  # fmt: skip
_INLINE = frozenset(
    ("a", "b", "br", "code", "em", "font", "i", "img", "li", "span", "strong", "sub", "sup", "td",
     "th", "tt", "u", "var")
)  # fmt: skip
_HIDDEN = frozenset(("script", "style"))
# Attributes need a value: "a<b and c>d" is a comparison, not a tag.
_ATTRIBUTES = r"(?:\s+[\w-]+\s*=\s*(?:\"[^\"<]*\"|'[^'<]*'|[^\s\"'<>]+))*"
_TAG = re.compile(
    rf"</?(?:{'|'.join(sorted(_BLOCKS | _INLINE | _HIDDEN))}){_ATTRIBUTES}\s*/?>", re.IGNORECASE
)
# Any whole tag; no < within it, so that looking for one costs no more than its own length.
_WHOLE_TAG = re.compile(r"""</?[a-zA-Z][^<>"']*(?:"[^"<]*"[^<>"']*|'[^'<]*'[^<>"']*)*>""")
_ENTITY = re.compile(r"&(?:[a-zA-Z]+|#\d+|#x[0-9a-fA-F]+);")


def html_to_text(text: str) -> str:
    """`text` without its HTML: blocks on lines of their own, lists as dashes, entities decoded.

    Text without any known tag or entity comes back as it is, since ``a<b`` is no tag. Powers and
    indices become ``^`` and ``_``; an image leaves its alternative text. Codeforces' ``$$$``
    around formulas becomes ``$``.
    """
    text = text.replace("\r\n", "\n").replace("$$$", "$")
    if not (_TAG.search(text) or _ENTITY.search(text)):
        return text.strip()
    parser = _Parser()
    parser.feed(_whole_tags(text))
    parser.close()
    plain = "".join(parser.pieces)
    plain = re.sub(r"[ \t]*\n[ \t]*(?=\n)", "\n", plain)
    return re.sub(r"\n{3,}", "\n\n", plain).strip()


def _whole_tags(text: str) -> str:
    """`text` with every < that begins no whole tag written out, and without comments.

    On begun tags, comments and declarations the parser's time grows with the square of the text.
    """
    pieces: list[str] = []
    at, commented = 0, True
    while (start := text.find("<", at)) >= 0:
        pieces.append(text[at:start])
        if commented and text.startswith("<!--", start):
            end = text.find("-->", start + 4)
            if end >= 0:
                at = end + 3
                continue
            commented = False
        tag = _WHOLE_TAG.match(text, start)
        pieces.append(tag[0] if tag else "&lt;")
        at = tag.end() if tag else start + 1
    return "".join([*pieces, text[at:]])


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self._verbatim = 0
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _HIDDEN:
            self._hidden += 1
        elif tag == "pre":
            self._verbatim += 1
            self._break("\n\n")
        elif tag == "br":
            self.pieces.append("\n")
        elif tag == "li":
            self._break("\n")
            self.pieces.append("- ")
        elif tag == "tr":
            self._break("\n")
        elif tag in _BLOCKS:
            self._break("\n\n")
        elif tag == "sup":
            self.pieces.append("^")
        elif tag == "sub":
            self.pieces.append("_")
        elif tag == "img":
            self.pieces.append(dict(attrs).get("alt") or "[image]")

    def handle_endtag(self, tag: str) -> None:
        if tag in _HIDDEN:
            self._hidden = max(0, self._hidden - 1)
        elif tag == "pre":
            self._verbatim = max(0, self._verbatim - 1)
            self._break("\n\n")
        elif tag in ("td", "th"):
            self.pieces.append(" ")
        elif tag == "tr":
            self._break("\n")
        elif tag in _BLOCKS:
            self._break("\n\n")

    def handle_data(self, data: str) -> None:
        if self._hidden:
            return
        if self._verbatim:
            self.pieces.append(data)
            return
        data = re.sub(r"\s+", " ", data)
        at_line_start = not self.pieces or self.pieces[-1].endswith(("\n", " "))
        self.pieces.append(data.lstrip() if at_line_start else data)

    def _break(self, lines: str) -> None:
        while self.pieces and not self.pieces[-1].strip(" "):
            self.pieces.pop()
        if self.pieces:
            self.pieces[-1] = self.pieces[-1].rstrip(" ")
            missing = len(lines) - (len(self.pieces[-1]) - len(self.pieces[-1].rstrip("\n")))
            self.pieces.append("\n" * max(0, missing))
