"""A row's text as Markdown, for the platform to render.

What is written for students elsewhere in this package is plain text with two marks: `code` between backticks, and lines of code
indented by four spaces. Names of files, functions and classes in it are the student's. So nothing but these marks may become markup:
every other character that could is written as a character reference, which no Markdown reads as structure and every one shows.
"""

import re
from itertools import groupby

_CODE = "    "
_SPAN = re.compile(r"`([^`\n]+)`")
_INLINE = re.compile(r"[\\`*_\[\]<>&~|$^]|://|(?<=[wW])\.(?=\w)|@")
_AT_THE_START = re.compile(r"[#+=\-:]|(?<=\d)[.)]")


def markdown(text: str) -> str:
    r"""Return `text` as Markdown: each line a paragraph, code in monospace.

    >>> print(markdown("`memory.f` raised X at a_b.py line 3:\n    x = 1"))
    `memory.f` raised X at a&#95;b.py line 3:
    <BLANKLINE>
    ```text
    x = 1
    ```
    """
    blocks = []
    for is_code, lines in groupby(_lines(text), key=lambda line: line.startswith(_CODE)):
        if is_code:
            blocks.append(_fenced([line[len(_CODE) :] for line in lines]))
        else:
            blocks += [_paragraph(line.strip()) for line in lines if line.strip()]
    return "\n\n".join(blocks)


def _lines(text: str) -> list[str]:
    """Split where a student's editor and Python do; what else ends a line for somebody, or turns it around, is shown as a mark."""
    return [
        "".join(letter if letter == "\t" or letter.isprintable() else "\ufffd" for letter in line)
        for line in re.split(r"\r\n|\r|\n", text)
    ]


def _fenced(lines: list[str]) -> str:
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}text", *lines, fence])


def _paragraph(line: str) -> str:
    pieces = _SPAN.split(line)  # text, code, text, code, ..., text
    shown = [f"`{piece}`" if i % 2 else _INLINE.sub(_references, piece) for i, piece in enumerate(pieces)]
    start = re.match(r"\d*", shown[0])
    assert start is not None
    if mark := _AT_THE_START.match(shown[0], start.end()):  # a heading, a list, a rule
        shown[0] = shown[0][: mark.start()] + _references(mark) + shown[0][mark.end() :]
    return "".join(shown)


def _references(match: "re.Match[str]") -> str:
    return "".join(f"&#{ord(letter)};" for letter in match[0])
