"""The handout: it builds, both languages say the same, and nothing in it can differ from the code or give a solution away."""

import ast
import doctest
import html
import importlib
import json
import math
import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from autograder import stubs
from handout import contract as contracts
from handout.problems import load_assignment
from tests import libraries
from tests.allowed import RULES

ROOT = stubs.ROOT
HANDOUT = ROOT / "handout"
SOURCES = sorted((HANDOUT / "text").glob("*.typ"))
EXAMPLES = sorted((HANDOUT / "examples").glob("*.pycon"))
PARTS = [part.id for part in load_assignment().parts]
PROBLEMS = {problem.id: problem for problem in load_assignment().problems}
CONTRACT = contracts.contract()


@pytest.fixture(scope="module")
def facts():
    """The numbers as `reference/` gives them now."""
    from handout import facts

    return facts.facts()


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with all documents, built twice."""
    pytest.importorskip("typst", reason="the handout needs typst: the extra `handout`")
    from handout import build

    folder = tmp_path_factory.mktemp("handout")
    build.Handout().build(folder / "first")
    build.Handout().build(folder / "second")
    return folder


def page(built, language):
    """Return the words of a web page, one line a block."""
    text = (built / "first" / f"handout-{language}.html").read_text(encoding="utf-8")
    text = re.sub(r"<(style|img|math).*?(</\1>|>)", " ", text, flags=re.DOTALL)
    return html.unescape(re.sub(r"</?(span|code|strong|a)\b[^>]*>", "", text))


# --- it builds ---


def test_a_pdf_and_a_page_are_built_in_each_language(built):
    names = {file.name for file in (built / "first").iterdir()}

    assert names == {"handout-en.pdf", "handout-en.html", "handout-zh.pdf", "handout-zh.html"}
    for file in (built / "first").glob("*.pdf"):
        assert file.read_bytes().startswith(b"%PDF-")
        assert b"pdfuaid" in file.read_bytes()


def test_the_same_bytes_are_built_twice(built):
    for file in (built / "first").iterdir():
        assert file.read_bytes() == (built / "second" / file.name).read_bytes(), file.name


def test_pages_load_nothing_from_elsewhere(built):
    for language in ("en", "zh"):
        text = (built / "first" / f"handout-{language}.html").read_text(encoding="utf-8")
        assert re.findall(r'(?:src|href)="(?!#|data:)([^"]*)"|url\((?!data:)([^)]*)\)', text) == []


def test_a_language_that_lacks_a_box_is_refused(built):
    from handout import build

    handout = build.Handout()
    _, found = handout.compile("en", "pdf")

    handout.check({"en": found, "zh": found})
    with pytest.raises(build.HandoutError, match="problems"):
        handout.check({"en": found, "zh": {**found, "problems": found["problems"][1:]}})
    with pytest.raises(build.HandoutError, match="missing"):
        short = {**found, "problems": found["problems"][1:]}
        handout.check({"en": short, "zh": short})


def test_every_paragraph_is_translated(built):
    text = (built / "first" / "handout-zh.html").read_text(encoding="utf-8")
    text = re.sub(r"<(math|code|style).*?</\1>|</?(strong|em|a|span|sup)\b[^>]*>", "", text, flags=re.DOTALL)
    paragraphs = re.findall(r"<(?:p|li|div|figcaption|td|summary|h\d)\b[^>]*>([^<]+)", text)

    english = [
        words for words in paragraphs if re.search(r"([a-z]+ ){3}", words) and not re.search(r"[\u4e00-\u9fff]", words)
    ]

    assert len(paragraphs) > 200
    assert [words for words in english if "Vaswani" not in words] == []


@pytest.mark.parametrize("language", ["en", "zh"])
def test_no_apostrophe_became_a_prime(built, language):
    assert "\N{PRIME}" not in page(built, language)  # Typst takes the one in "H100's" for minutes of arc


def test_every_committed_font_has_its_licence_beside_it():
    for folder in (HANDOUT / "fonts", HANDOUT / "web"):
        assert any(folder.rglob("*.otf")) or any(folder.rglob("*.woff2"))
        assert "SIL OPEN FONT LICENSE" in (folder / "OFL.txt").read_text(encoding="utf-8")
    assert (HANDOUT / "web" / "GUST-FONT-LICENSE.txt").exists()


# --- it cannot disagree with the code ---


def same(a, b):
    """Compare plain data; floats may differ as they do between processors."""
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return isinstance(b, (int, float)) and math.isclose(a, b, rel_tol=1e-6)
    return a == b


def test_facts_are_current(facts):
    committed = json.loads((HANDOUT / "facts.json").read_text(encoding="utf-8"))
    now = json.loads(json.dumps(facts))
    curves = (committed.pop("losses"), now.pop("losses"))

    stale = [key for key in now if not same(now[key], committed.get(key))]

    assert stale == [], "run python -m handout.facts, then python -m handout.figures"
    for old, new in zip(*(curve["curves"].values() for curve in curves), strict=True):
        # Losses are rounded to three digits, and a training run magnifies what processors round differently.
        np.testing.assert_allclose(new, old, rtol=0.05)


def test_figures_are_drawn_from_the_facts_as_they_are(tmp_path):
    figures = pytest.importorskip("handout.figures", reason="figures need matplotlib", exc_type=ImportError)
    digest = figures.digest(json.loads((HANDOUT / "facts.json").read_text(encoding="utf-8")))
    names = {f"{drawing.__name__}-{language}.svg" for drawing in figures.DRAWINGS for language in figures.LANGUAGES}

    assert {file.name for file in (HANDOUT / "figures").glob("*.svg")} == names
    for name in names:
        text = (HANDOUT / "figures" / name).read_text(encoding="utf-8")
        assert f"drawn from {digest}" in text, f"{name} is stale: run python -m handout.figures"
    if f"matplotlib {figures.matplotlib.__version__}<" in text:  # another release may draw other bytes
        for file in figures.draw(tmp_path):
            assert file.read_bytes() == (HANDOUT / "figures" / file.name).read_bytes(), file.name


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: file.name)
def test_no_large_number_is_typed_by_hand(file):
    text = re.sub(r"`[^`]*`", "", file.read_text(encoding="utf-8"))
    text = re.sub(r'rgb\("[^"]*"\)', "", text)  # colours
    numbers = re.findall(r'(?<![\w.#"])\d{4,}(?!\w)', text)

    assert [number for number in numbers if (file.name, number) not in TYPED] == []


# Years, which no code computes.
TYPED = {("00-start.typ", "2017"), ("02-dtypes.typ", "2018"), ("02-dtypes.typ", "2022")}


def console():
    """Return what a console knows after the imports that the handout tells the reader to type."""
    return {"torch": torch, "np": np, "nn": nn}


@pytest.fixture
def solved(monkeypatch):
    """Let `from student import memory` find the reference."""
    package = types.ModuleType("student")
    for part in PARTS:
        module = importlib.import_module(f"reference.{part}")
        setattr(package, part, module)
        monkeypatch.setitem(sys.modules, f"student.{part}", module)
    monkeypatch.setitem(sys.modules, "student", package)


def failures(text, globs, name):
    """Type in what stands behind the prompts; return what differs from what is printed in the handout."""
    said: list[str] = []
    test = doctest.DocTestParser().get_doctest(text + "\n", globs, name, name, 0)
    assert test.examples
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=said.append)
    return "".join(said)


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
@pytest.mark.usefixtures("solved")
def test_examples_print_what_the_handout_says(file):
    pieces = [piece.split("\n", 1) for piece in file.read_text(encoding="utf-8").split("--- ")[1:]]
    text = "\n".join(code for _, code in pieces)

    assert failures(text, console(), file.stem) == ""


@pytest.mark.parametrize("id", [id for id, problem in CONTRACT["problems"].items() if problem["example"]])
def test_worked_examples_print_what_the_boxes_say(id):
    names = console()
    exec(f"from reference.{PROBLEMS[id].part} import *", names)
    text = re.sub(r"^$", "<BLANKLINE>", CONTRACT["problems"][id]["example"], flags=re.MULTILINE)

    assert failures(text, names, id) == ""


def test_no_line_of_code_is_wider_than_the_page():
    boxes = [problem[what] or "" for problem in CONTRACT["problems"].values() for what in ("signature", "example")]
    columns = [file.read_text(encoding="utf-8") for file in EXAMPLES]

    assert [line for text in boxes for line in text.splitlines() if len(line) > 99] == []
    assert [line for text in columns for line in text.splitlines() if len(line) > 102] == []


def test_every_example_is_shown():
    shown = {
        tuple(found)
        for file in SOURCES
        for found in re.findall(r'example\("(\w+)", "([^"]+)"\)', file.read_text("utf-8"))
    }
    there = {
        (file.stem, name)
        for file in EXAMPLES
        for name in re.findall(r"^--- (.+)$", file.read_text("utf-8"), re.MULTILINE)
    }

    assert shown == there


@pytest.mark.parametrize("part", PARTS)
def test_signatures_are_those_of_the_stubs(part):
    source = (ROOT / "reference" / f"{part}.py").read_text(encoding="utf-8")
    stub = {
        n.name: n
        for n in ast.parse(stubs.generate(source, part)).body
        if isinstance(n, (ast.FunctionDef, ast.ClassDef))
    }

    for problem in load_assignment().problems:
        shown = CONTRACT["problems"][problem.id]["signature"]
        if problem.part == part and shown:
            # A body for each def makes it Python again.
            lines = re.sub(r"^( *)(def [^\n]*(?:\n(?!\1def )[^\n]*)*)", r"\1\2: ...", shown, flags=re.MULTILINE)
            (node,) = ast.parse(lines).body
            assert functions(node) == functions(stub[problem.name])


def functions(node):
    """Return the arguments and what is returned, of a function or of a class's public methods."""
    if isinstance(node, ast.FunctionDef):
        return {node.name: (ast.unparse(node.args), node.returns and ast.unparse(node.returns))}
    methods = [m for m in node.body if isinstance(m, ast.FunctionDef)]
    return {"bases": [ast.unparse(base) for base in node.bases]} | {
        k: v for m in methods for k, v in functions(m).items()
    }


def test_commands_run_the_public_tests_of_their_problem_and_no_others():
    tests = [
        (mark[1], f"{file.name} {node.name}")
        for file in sorted((ROOT / "tests").glob("test_*.py"))
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
        for decorator in node.decorator_list
        if (mark := re.search(r"mark\.problem\('([\w.]+)'\)", ast.unparse(decorator)))
    ]
    assert len(tests) > 100
    for id, problem in CONTRACT["problems"].items():
        words, *others = problem["command"].split(" -k ")[1].strip('"').split(" and not ")
        chosen = [test for test in tests if words in test[1] and not any(other in test[1] for other in others)]
        assert chosen == [test for test in tests if test[0] == id], problem["command"]


def test_commands_call_a_python_that_every_machine_has():
    texts = [*SOURCES, ROOT / "README.md", HANDOUT / "student-readme.md", ROOT / "Makefile"]
    found = [
        f"{file.name}:{i}: {line.strip()[:80]}"
        for file in texts
        for i, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(r"(?<![\w/\\])(python|pytest) (-m )?tests\b", line)
    ]
    assert found == [], "many systems have only python3, and no pytest outside .venv"
    assert all(p["command"].startswith("python3 -m tests ") for p in CONTRACT["problems"].values())


def test_adamw_is_stated_line_by_line(built):
    from reference import optimizers

    lines = CONTRACT["adamw"]
    assert len(lines) == 7
    for line in lines:
        assert f"        {line}\n" in (optimizers.AdamW.__doc__ or "")
        for language in ("en", "zh"):
            assert line in page(built, language)


def test_all_rules_of_the_checker_are_printed(built):
    for rule in RULES:
        assert rule.says in page(built, "en")


@pytest.mark.parametrize("language", ["en", "zh"])
def test_all_modules_that_may_be_imported_are_printed(built, language):
    text = page(built, language)
    for library, modules in libraries.listed().items():
        names = [re.sub(rf"^{library}\.", "", module) for module in modules]
        assert ", ".join(names) in text or ", ".join(modules) in text, library
    for module, names in libraries.ONLY.items():
        assert ", ".join(sorted(names)) in text, module


@pytest.mark.parametrize("language", ["en", "zh"])
def test_boxes_hold_points_file_and_command(built, language):
    text = page(built, language)
    for problem in CONTRACT["problems"].values():
        assert problem["command"] in text
        assert problem["file"] in text
        if problem["signature"]:
            assert problem["signature"].split("(")[0] in text
    points = {"en": r"· (\d+) points?<", "zh": r"· (\d+) 分<"}[language]
    assert sum(map(int, re.findall(points, text))) == CONTRACT["points"]


def test_every_part_asks_first_and_answers_last():
    for part in load_assignment().parts:
        (file,) = [file for file in SOURCES if file.name.startswith(f"{part.number:02}-")]
        text = file.read_text(encoding="utf-8")
        first_box = text.index("#problem(")
        assert text.index("#question[") < text.index("#bi[") < first_box, file.name
        assert text.rindex("#able[") > text.rindex("#problem("), file.name
        assert "#mistake[" in text, file.name


def test_three_problems_have_hints_and_they_are_folded(built):
    for language in ("en", "zh"):
        text = (built / "first" / f"handout-{language}.html").read_text(encoding="utf-8")
        assert text.count("<details>") == 3
    assert "<details open" not in text


# --- it gives nothing away ---

# Lines that stand in solutions because everybody's code has them.
EVERYBODYS = {"optimizer.step()", "optimizer.zero_grad()", "loss.backward()", "super().__init__()", "return loss"}


def squeezed(text):
    """Return code without what may differ in printing."""
    return re.sub(r"[\s\"'“”‘’]+", "", text)


@pytest.mark.parametrize("part", PARTS)
def test_no_line_of_a_solution_is_in_the_handout(built, part):
    source = (ROOT / "reference" / f"{part}.py").read_text(encoding="utf-8")
    public = squeezed(stubs.generate(source, part))
    lines = {squeezed(line) for full in source.splitlines() for line in (full, re.sub(r"\s+#.*", "", full))}
    secret = {line for line in lines if len(line) > 14 and line not in public and not line.startswith("#")}
    secret -= {squeezed(line) for line in EVERYBODYS}
    texts = {f"handout-{language}.html": squeezed(page(built, language)) for language in ("en", "zh")}
    texts |= {file.name: squeezed(file.read_text(encoding="utf-8")) for file in [*SOURCES, *EXAMPLES]}

    assert len(secret) > 3
    assert [(name, line) for name, text in texts.items() for line in sorted(secret) if line in text] == []


def test_nothing_private_is_named_in_the_handout(built):
    for language in ("en", "zh"):
        text = page(built, language)
        assert not re.search(r"\breference/|autograder/|hidden/test_", text)
        assert str(Path.home()) not in text
