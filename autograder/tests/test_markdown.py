"""What a student wrote never becomes markup in what they read; our own code does."""

import html
import re
from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from autograder.markdown import markdown

RENDERERS = [
    MarkdownIt("commonmark"),
    MarkdownIt("gfm-like", {"linkify": False}),  # strikethrough, tables
]
SNIPPETS = [
    "<script>alert(1)</script>", "<img src=x onerror=y>", "[x](javascript:y)", "![x](http://y)", "**x**", "_x_", "a_b_c", "# x",
    "- x", "+ x", "1. x", "1) x", "> x", "---", "===", "```", "~~~", "``x`", "`", "&lt;", "&#60;", "\\", "\\`", "| a | b |", "|---|---|",
    "~~x~~", "$$x$$", "<!--", "http://x.y", "www.x.y", "a@b.c", ":smile:", "\t", "  ", "    ", "\n", "\n\n", "\r", "\x0b", "\u2028", "x",
]  # fmt: skip


def rendered(text: str, renderer: MarkdownIt) -> str:
    return renderer.render(markdown(text))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(SNIPPETS) | st.text(max_size=8), max_size=12).map("".join))
def test_no_text_makes_another_tag_than_paragraphs_and_code_and_all_of_it_is_shown(text):
    for renderer in RENDERERS:
        page = rendered(text, renderer)
        assert {*re.findall(r"</?([a-z0-9]+)", page)} <= {"p", "code", "pre"}, page
        shown = html.unescape(re.sub(r"<[^>]*>", "", page))
        assert squeezed(shown) == squeezed(
            re.sub(r"`([^`\n]+)`", r"\1", text.replace("\r", "\n")) if spans(text) else text
        )


def spans(text: str) -> bool:
    """Tell whether the text has code between backticks, whose backticks go."""
    return any(re.search(r"`[^`]+`", line) and not line.startswith("    ") for line in re.split(r"\r\n|\r|\n", text))


def squeezed(text: str) -> list[str]:
    """Return the letters of a text: how white space is shown is the renderer's business, and what cannot be seen is a mark."""
    return [letter for letter in text if letter.isprintable() and not letter.isspace() and letter not in "`\0\ufffd"]


@pytest.mark.parametrize("renderer", RENDERERS)
def test_code_is_monospaced(renderer):
    text = "memory.py could not be imported: SyntaxError at memory.py line 3.\n    def f)(:\n         ^\nNo test of `memory.f_x` can run."
    page = rendered(text, renderer)
    assert '<pre><code class="language-text">def f)(:\n     ^\n</code></pre>' in page
    assert "<code>memory.f_x</code>" in page and page.count("<p>") == 2


@pytest.mark.parametrize("line", ["```", "````", "~~~", "</code></pre><b>", "`x`"])
def test_a_line_of_code_ends_no_block_of_code(line):
    page = rendered(f"told\n    {line}\n    x\nand", RENDERERS[0])
    (block,) = re.findall(r"<pre><code[^>]*>(.*?)</code></pre>", page, re.DOTALL)
    assert html.unescape(block) == f"{line}\nx\n"


@pytest.mark.parametrize("end", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029", "\u202e"])
def test_no_line_of_code_ends_where_only_some_would_end_it(end):
    page = rendered(f"told\n    x = 1{end}All hidden tests passed.\nand", RENDERERS[0])
    (block,) = re.findall(r"<pre><code[^>]*>(.*?)</code></pre>", page, re.DOTALL)
    assert block == "x = 1\ufffdAll hidden tests passed.\n" and page.count("<p>") == 2


def test_ordinary_sentences_stay_as_they_are():
    text = "Element 3 differs (index [2, 1] aside): a long-winded, non-finite value, 1.5 or -2."
    assert html.unescape(markdown(text)) == text
    assert markdown("An int came back where a float is expected.") == "An int came back where a float is expected."
    assert [kind for kind, _ in groupby(markdown(""))] == []
