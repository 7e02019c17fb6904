"""`python -m handout.build [FOLDER]`: build the handout, a PDF and a web page in each language, into `handout/build/`.

Needs `typst` from PyPI and what is in this folder. The same bytes come out each time. Each web page is one file, with its fonts,
figures and style inside. The build fails where the handout would be wrong: a missing glyph or alternative text, a problem left out
or out of order, a heading, formula, box or piece of code that only one language has.
"""

import argparse
import base64
import json
import re
import sys
from pathlib import Path
from typing import Any, Literal

import typst

from handout.contract import contract

HERE = Path(__file__).resolve().parent
MAIN = HERE / "text" / "main.typ"
LANGUAGES = ("en", "zh")
Format = Literal["pdf", "html"]
FORMATS: tuple[Format, ...] = ("pdf", "html")
EXPECTED = ("html export is under active development",)  # any other warning is an error


class HandoutError(Exception):
    """The handout cannot be built as it stands."""


class Handout:
    """The handout's sources, ready to be compiled."""

    def __init__(self) -> None:
        self.contract = contract()
        self.fonts = typst.Fonts(include_system_fonts=False, font_paths=[str(HERE / "fonts")])

    def compile(self, language: str, format: Format) -> tuple[bytes, dict[str, list[Any]]]:
        """Return a document, and its outline: what both languages must share."""
        compiler = typst.Compiler(str(MAIN), root=str(HERE), font_paths=self.fonts)
        inputs = {"lang": language, "format": format, "contract": json.dumps(self.contract)}
        options: dict[str, Any] = {"pdf_standards": ["ua-1"]} if format == "pdf" else {}
        try:
            data, warnings = compiler.compile_with_warnings(format=format, sys_inputs=inputs, **options)
        except typst.TypstError as error:
            raise HandoutError(f"{language}.{format}: {error.diagnostic}") from error  # str(error) names no place
        if bad := [w.message for w in warnings if not w.message.startswith(EXPECTED)]:
            raise HandoutError(f"{language}.{format}: {bad}")
        assert isinstance(data, bytes)  # a list of them is for formats that have a file a page
        return data, outline(compiler) if format == "pdf" else {}

    def build(self, folder: Path) -> list[Path]:
        """Write all documents into a folder.

        Raises:
            HandoutError: if a document cannot be built, or says other things than it should.
        """
        folder.mkdir(parents=True, exist_ok=True)
        outlines, files = {}, []
        for language in LANGUAGES:
            for format in FORMATS:
                data, found = self.compile(language, format)
                if format == "html":
                    data = finish_html(data.decode()).encode()
                else:
                    outlines[language] = found
                file = folder / f"handout-{language}.{format}"
                file.write_bytes(data)
                files.append(file)
        self.check(outlines)
        return files

    def check(self, outlines: dict[str, dict[str, list[Any]]]) -> None:
        """Refuse languages that differ, and problems that are missing or out of order."""
        first, *others = LANGUAGES
        for language in others:
            for what, ours in outlines[first].items():
                theirs = outlines[language][what]
                if len(ours) != len(theirs):
                    raise HandoutError(f"{first} has {len(ours)} {what}, {language} has {len(theirs)}")
                for a, b in zip(ours, theirs, strict=True):
                    if a != b:
                        raise HandoutError(f"{first} and {language} differ in {what}:\n{a}\n{b}")
        ids = [problem["id"] for problem in outlines[first]["problems"]]
        if ids != list(self.contract["problems"]):
            raise HandoutError(f"problems are missing from the handout, or out of order: {ids}")


def outline(compiler: typst.Compiler) -> dict[str, list[Any]]:
    """Return what both languages must share, in the order of the document."""

    def found(selector: str) -> list[dict[str, Any]]:
        return list(json.loads(compiler.query(selector)))

    return {
        "headings": [(e.get("label"), e["level"]) for e in found("heading")],
        "figures": [e.get("label") for e in found("figure")],
        "formulas": [(e.get("label"), wordless(e["body"])) for e in found("math.equation.where(block: true)")],
        "formulas in sentences": sorted({e["alt"] for e in found("math.equation.where(block: false)")}),
        "references": sorted(e["target"] for e in found("ref")),
        "code": [e["text"] for e in found("raw.where(block: true)")],
        "problems": [e["value"] for e in found("<problem-meta>")],
        "footnotes": [e.get("label") for e in found("footnote")],
    }


def wordless(content: Any) -> Any:
    """Return a formula with a "word" in place of each text of two letters and more: texts are translated."""
    if isinstance(content, dict):
        words = content.get("func") == "text" and re.search(r"[^\W\d_]{2,}|[\u4e00-\u9fff]", str(content["text"]))
        return "word" if words else {key: wordless(value) for key, value in content.items()}
    if isinstance(content, list):
        return [wordless(value) for value in content]
    return content


# --- the web page ---

# Chromium gives a stretchy fence the width of its largest variant ("f ( x )"): unstretch flat ones.
_TALL = "mrow|mfrac|mtable|munder|mover|munderover|msqrt|mroot"
_FENCE = re.compile(
    rf"<mrow><mo>([(\[{{|])</mo>(<mrow>(?:(?!</?(?:{_TALL})\b).)*</mrow>|(?:(?!</?(?:{_TALL})\b).)*?)"
    r"<mo>([)\]}|])</mo></mrow>"
)
# A browser may break the line between a formula and the punctuation after it; Chinese shows it most.
_STICK = re.compile(r"((?:[（(“])?<math>(?:(?!</math>).)*</math>[，。；：、）”？！,.;:)]+)")
_FONT = re.compile(r"url\(([\w.-]+\.woff2)\)")


_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_CELL = re.compile(r"<(t[hd])\b([^>]*)>(.*?)</t[hd]>", re.DOTALL)
_NUMBER = re.compile(r"[\d.,+*×−–-]*|[\d.]+e\d+\*?")


def finish_html(text: str) -> str:
    """Put style and fonts into the page, align numbers in tables, and repair what browsers do to formulas."""
    text = _TABLE.sub(lambda match: _numbers_to_the_right(match[0]), text)
    text = _STICK.sub(r'<span class="nb">\1</span>', text)
    text = _FENCE.sub(r'<mrow><mo stretchy="false">\1</mo>\2<mo stretchy="false">\3</mo></mrow>', text)
    if text.count("</head>") != 1:
        raise HandoutError("the page has no head to put a style into")
    return text.replace("</head>", f"<style>{style()}</style></head>")


def _numbers_to_the_right(table: str) -> str:
    """Mark the cells of the columns that hold numbers alone: the compiler's pages know no alignment."""
    rows = [_CELL.findall(row) for row in table.split("</tr>")[:-1]]
    plain = [[re.sub(r"<[^>]*>|\s", "", cell) for _, _, cell in row] for row in rows[1:]]
    numeric = {i for i in range(len(rows[0])) if all(_NUMBER.fullmatch(row[i]) for row in plain if i < len(row))}

    def mark(row: str) -> str:
        places = iter(range(len(rows[0])))
        number = {True: ' class="num"', False: ""}
        return _CELL.sub(lambda m: f"<{m[1]}{m[2]}{number[next(places) in numeric]}>{m[3]}</{m[1]}>", row)

    return "</tr>".join(map(mark, table.split("</tr>")))


def style() -> str:
    """Return the style sheet with the fonts inside."""

    def inline(match: re.Match[str]) -> str:
        data = base64.b64encode((HERE / "web" / match[1]).read_bytes()).decode()
        return f"url(data:font/woff2;base64,{data})"

    return _FONT.sub(inline, (HERE / "web" / "style.css").read_text(encoding="utf-8"))


def main(arguments: list[str] | None = None) -> int:
    """Build all documents; return 2, and say why in a line, if that cannot be done."""
    parser = argparse.ArgumentParser(prog="python -m handout.build", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=HERE / "build", help="where the documents go")
    options = parser.parse_args(arguments)
    try:
        for file in Handout().build(options.folder):
            print(f"{file.name:16} {file.stat().st_size / 1024:7.0f} KiB")
    except (HandoutError, OSError) as error:
        print(f"the handout was not built: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
