"""Grade book, manual marks, numbers, report, near-identical submissions, merge and regrade: on results that are made up."""

import csv
import html
import json
import os
import re
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autograder.classroom.export import HandedIn, Student
from autograder.classroom.folder import OtherExport, left_behind, load_students, other_grades, save_students, set_aside
from autograder.classroom.gradebook import kept_instead, lines, manual_marks, set_aside_edited, write_grades
from autograder.classroom.manual import BadMarks, Marks, read_marks
from autograder.classroom.merge import merged, problems_of
from autograder.classroom.record import Record, load, path_of, save
from autograder.classroom.regrade import changes, told
from autograder.classroom.report import write_report
from autograder.classroom.shape import shape
from autograder.classroom.similar import similar
from autograder.classroom.statistics import class_statistics, correlation
from autograder.grade import Grade, Row
from autograder.pack import grader_version
from autograder.tests import browser
from autograder.tests.classes import grades
from autograder.tests.handed_in import ROOT, reference, replaced
from autograder.tests.running import run
from handout.problems import load_assignment
from tests.submission import write_atomically

ASSIGNMENT = load_assignment()
BONUS = next(problem for problem in ASSIGNMENT.problems if problem.bonus)
ANA, BO = Student("Ana Nuñez", "00123", "ana@example.edu"), Student("=Bo", "", "bo@example.edu")


def row(problem: str, name: str, points: float = 1.0, **fields) -> Row:
    number = ASSIGNMENT.problem(problem).number
    test = f"test_{problem.split('.')[0]}.py::test_{name}"
    return Row(number, problem, test, f"What {name} says.", points, **{"outcome": "passed", "output": "", **fields})


def lost(problem: str, name: str, points: float = 1.0, cause: str = "wrong", **fields) -> Row:
    return row(problem, name, points, outcome="failed", cause=cause, **{"output": f"<b>{name}</b> is wrong", **fields})


def record(id: str, *rows: Row, **fields) -> Record:
    return replace(Record(id, "graded", "", Grade(rows, "full"), 1.5, "d", grader_version(), ()), **fields)


def handed_in(id: str, *students: Student, has_files: bool = True) -> HandedIn:
    return HandedIn(id, students, "2026-11-30 01:02:03.000000000 Z", has_files)


CLASS = (handed_in("submission_1", ANA, BO), handed_in("submission_2"), handed_in("submission_3", has_files=False))
RECORDS = {
    "submission_1": record("submission_1", row("napkin.training_flops", "a"), lost("napkin.training_days", "b", 2.0)),
    "submission_2": record(
        "submission_2", row("napkin.training_flops", "a"), status="crashed", detail="the worker ended"
    ),
}


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# The grade book


def test_every_student_of_a_group_has_a_line_and_no_grade_is_no_zero(tmp_path):
    students = lines(CLASS, RECORDS, Marks(()), {})
    write_grades(tmp_path, students, ASSIGNMENT, problems_of(RECORDS, ASSIGNMENT))
    book = table(tmp_path / "grades.csv")
    assert [(line["Name"], line["SID"], line["Status"], line["Total Score"]) for line in book] == [
        ("Ana Nuñez", "00123", "graded", "1"),
        ("'=Bo", "", "graded", "1"),
        ("", "", "crashed", ""),
        ("", "", "no folder", ""),
    ]
    assert (book[0]["1.1 napkin.training_flops"], book[0]["1.2 napkin.training_days"]) == ("1", "0")
    assert book[2]["1.1 napkin.training_flops"] == "" and book[2]["Why not graded"] == "the worker ended"
    text = (tmp_path / "grades.csv").read_text(encoding="utf-8")
    assert '"00123"' in text and ',"1",' not in text  # ids are text, points are numbers
    canvas = table(tmp_path / "canvas.csv")
    assert [
        (line["Student"], line["SIS User ID"], line["SIS Login ID"], line[ASSIGNMENT.title]) for line in canvas[1:]
    ] == [
        ("Ana Nuñez", "00123", "ana@example.edu", "1"),
        ("'=Bo", "", "bo@example.edu", "1"),
    ]


def test_whom_canvas_cannot_tell_from_others_is_left_out_and_named_and_points_are_those_of_the_assignment(tmp_path):
    """Who is in two submissions, by whatever name, and who has no name that Canvas knows."""
    students = Student("Ana Nuñez", "", "ANA@example.edu"), Student("Hal", "", ""), Student("Bo", "7", "bo@example.edu")
    people = [handed_in("submission_1", ANA), *(handed_in(f"submission_{i}", one) for i, one in enumerate(students, 2))]
    (tmp_path / "manual.csv").write_text("who,points,why\n" + "".join(f"submission_{i},{i},\n" for i in range(1, 5)))
    given = read_marks(tmp_path / "manual.csv", people)
    book = lines(people, {}, given, {})
    write_grades(tmp_path, book, ASSIGNMENT, [])
    points, bo = table(tmp_path / "canvas.csv")
    assert bo["Student"] == "Bo" and points[ASSIGNMENT.title] == "100"
    assert {line["Max Points"] for line in table(tmp_path / "grades.csv")} == {"100"}
    whys = ("is in more than one submission", "has neither an id nor an email")
    for anonymous in (False, True):
        write_report(tmp_path, ASSIGNMENT, people, {}, book, anonymous)
        named = text_of(tmp_path / "report.html").split("whom canvas.csv leaves out</h3>")[1].split("<h3>")[0]
        assert named.count(whys[0]) == 2 and named.count(whys[1]) == 1
        assert named.count("Ana Nuñez is in") == (0 if anonymous else 1 + 1)


def marks(folder: Path, *text: str) -> Marks:
    (folder / "manual.csv").write_text("who,points,why\n" + "\n".join(text) + "\n", encoding="utf-8")
    return read_marks(folder / "manual.csv", CLASS)


def test_manual_marks_are_added_for_a_submission_or_for_one_of_its_students(tmp_path):
    given = marks(tmp_path, 'submission_1,2,"a, b"', "00123,-0.5,late", "submission_2,7,on paper")
    totals = [line.total for line in lines(CLASS, RECORDS, given, {})]
    assert totals == [2.5, 3.0, 7.0, None]
    given = marks(tmp_path, "ANA@example.edu,2,essay", "ana@example.edu,1,talk", "bo@example.edu,-5,late")
    assert [line.total for line in lines(CLASS, RECORDS, given, {})] == [4.0, 0.0, None, None], (
        "several add up, down to 0"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nobody,1,", "nobody in the export"),
        ("submission_1,many,", "is no number"),
        ("submission_1,nan,", "is no number"),
        ("submission_1,1e6,", "is no number"),
        ("submission_1,1_5,", "is no number"),
        ("submission_1,1,5", "is it a decimal comma\\? 1.5 is written with a point"),
        ("00123,1,", "the same mark as in line 2"),
        ("ANA@example.edu,1.0, ", "the same mark as in line 2"),
        ("00123,1,\u2026", "the same mark as in line 2"),
        (",1,", "nobody in the export"),
        ("submission_2,1,5,a decimal comma", "more than three fields"),
        ('submission_2,1,"never closed\nsubmission_1,2,lost', "is a quote closed"),
        ('submission_2,2,"late\nsubmission_1,5,no figure"', "a field goes on until line 4; is there a stray quote"),
    ],
)
def test_a_mark_that_cannot_be_right_is_refused_with_its_line(tmp_path, text, words):
    with pytest.raises(BadMarks, match=words) as error:
        marks(tmp_path, "submission_1,1,", text)
    assert "line 3" in str(error.value)


@pytest.mark.parametrize("why", ["On paper dérivation", "on_paper (de\u0301rivation)"])
def test_a_mark_is_the_same_in_other_letters_and_punctuation(tmp_path, why):
    with pytest.raises(BadMarks, match="the same mark as in line 2"):
        marks(tmp_path, "00123,1,on paper: d\u00e9rivation", f"ana@example.edu,1,{why}")
    assert len(marks(tmp_path, "00123,1,A", "00123,1,B").marks) == 2


def test_what_is_taken_off_is_no_grade(tmp_path):
    """Of a submission that has none: it would be a grade below 0."""
    given = marks(tmp_path, "submission_2,-1,late")

    assert [line.total for line in lines(CLASS, RECORDS, given, {})][2] is None


def test_who_is_graded_after_marks_in_the_place_of_a_grade_is_named_until_the_marks_are_others(tmp_path):
    """Also if it is another submission of the same student that is graded."""
    early, later = handed_in("submission_1", ANA), handed_in("submission_3", ANA)
    graded = {"submission_3": record("submission_3", row("napkin.training_flops", "a"))}
    given = marks(tmp_path, "00123,60,paper")
    given = replace(given, marks=tuple(replace(one, given=one.given | {("submission_3", ANA)}) for one in given.marks))
    for one, records in ((early, {}), (later, graded), (later, graded)):
        (line,) = book = lines([one], records, given, kept_instead(tmp_path))
        write_grades(tmp_path, book, ASSIGNMENT, [])
        assert line.summed == (one is later)
    write_report(tmp_path, ASSIGNMENT, [later], graded, book, anonymous=False)
    assert "Ana Nuñez" in text_of(tmp_path / "report.html").split("Manual marks from before")[1].split("<h3>")[0]
    for text in ("00123,5,paper", "00123,60,paper"):
        (line, _) = book = lines([CLASS[0]], RECORDS, marks(tmp_path, text), kept_instead(tmp_path))
        write_grades(tmp_path, book, ASSIGNMENT, [])
        assert not line.summed, "somebody has looked"


def test_points_of_0_stand_where_there_is_no_grade(tmp_path):
    """Also what adds up to 0: who gave them has looked at something."""
    given = marks(tmp_path, "submission_2,0,nothing on paper", "submission_3,5,paper", "submission_3,-5,late")
    assert [line.total for line in lines(CLASS, RECORDS, given, {})] == [1.0, 1.0, 0.0, 0.0]


def test_marks_behind_a_link_that_leads_nowhere_are_not_taken_for_none(tmp_path):
    (tmp_path / "manual.csv").symlink_to(tmp_path / "elsewhere.csv")
    with pytest.raises(BadMarks, match="is a link to a file that is not there"):
        read_marks(tmp_path / "manual.csv", CLASS)


def test_marks_of_two_of_one_name_are_told_apart(tmp_path):
    twins = [handed_in("submission_1", Student("Bo", "1", "a@x.edu"), Student("Bo", "2", "b@x.edu"))]
    (tmp_path / "manual.csv").write_text("who,points,why\n1,1,talk\n2,3,talk\n")
    book = lines(twins, {}, read_marks(tmp_path / "manual.csv", twins), {})
    assert manual_marks(book) == {"submission_1, Bo, a@x.edu": 1.0, "submission_1, Bo, b@x.edu": 3.0}


def test_each_edited_grade_book_is_kept_and_none_of_ours_is_taken_for_one(tmp_path):
    book = lines(CLASS, RECORDS, Marks(()), {})
    for number, kept in enumerate((None, "grades.csv~", "grades.csv~2")):
        found = set_aside_edited(tmp_path)
        assert (found and found.name) == kept
        write_grades(tmp_path, book, ASSIGNMENT, [])
        assert set_aside_edited(tmp_path) is None
        (tmp_path / "grades.csv").write_text(f"edited {number}")
    assert (tmp_path / "grades.csv~2").read_text() == "edited 1"
    # A run that is killed when it has replaced half of its files.
    set_aside_edited(tmp_path)
    (tmp_path / "canvas.csv").unlink()
    (tmp_path / "canvas.csv").mkdir()
    with pytest.raises(OSError):
        write_grades(tmp_path, book, ASSIGNMENT, [])
    assert set_aside_edited(tmp_path) is None


def test_commas_that_a_spreadsheet_leaves_are_nothing_and_zeros_that_it_takes_are_named(tmp_path):
    (tmp_path / "manual.csv").write_text("who,points,why,,\n00123,2,essay,,\n,,,,\n", encoding="utf-8")
    assert [mark.points for mark in read_marks(tmp_path / "manual.csv", CLASS).marks] == [2.0]
    with pytest.raises(BadMarks, match="'123': has a spreadsheet changed the zeros of '00123'?"):
        marks(tmp_path, "123,2,essay")


def test_a_mark_for_one_of_several_submissions_is_refused(tmp_path):
    (tmp_path / "manual.csv").write_text("who,points,why\n00123,1,\n", encoding="utf-8")
    with pytest.raises(BadMarks, match="stands for 2 submissions: name the submission"):
        read_marks(tmp_path / "manual.csv", [handed_in("submission_1", ANA), handed_in("submission_2", ANA)])


def test_a_mark_for_one_of_a_group_is_not_given_to_two(tmp_path):
    """One id for two members of a group, of whom one has no email: each would have had the mark."""
    pair = [handed_in("submission_2", Student("Ann", "N/A", "ann@example.edu"), Student("Bob", "N/A", ""))]
    (tmp_path / "manual.csv").write_text("who,points,why\nN/A,3,for Bob\n", encoding="utf-8")
    with pytest.raises(BadMarks, match="'N/A' stands for 2 members of a group"):
        read_marks(tmp_path / "manual.csv", pair)
    (tmp_path / "manual.csv").write_text("who,points,why\nsubmission_2,3,for both\n", encoding="utf-8")
    assert [len(mark.given) for mark in read_marks(tmp_path / "manual.csv", pair).marks] == [2]


def test_an_id_is_taken_as_it_stands_in_the_grade_book(tmp_path):
    """Where one that a spreadsheet would compute is shielded from it."""
    formula = handed_in("submission_1", Student("=1+1", "=7", "+a@example.edu"), Student("Bo", "'", "bo@example.edu"))
    write_grades(tmp_path, lines([formula], {}, Marks(()), {}), ASSIGNMENT, [])
    sid, email = table(tmp_path / "grades.csv")[0]["SID"], table(tmp_path / "grades.csv")[0]["Email"]
    assert (sid, email) == ("'=7", "'+a@example.edu")
    for who, points in ((sid, 1.0), ("=7", 1.0), (email, 1.0)):
        (tmp_path / "manual.csv").write_text(f"who,points,why\n{who},1,\n", encoding="utf-8")
        given = read_marks(tmp_path / "manual.csv", [formula])
        assert [line.manual for line in lines([formula], {}, given, {})] == [points, None]
    (tmp_path / "manual.csv").write_text("who,points,why\n'bo@example.edu,1,\n", encoding="utf-8")
    with pytest.raises(BadMarks, match="nobody in the export"):
        read_marks(tmp_path / "manual.csv", [formula])


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (
            "manual.csv",
            b"name,points\nAna,1\n",
            "the first line must be who,points,why: save it as CSV, comma-separated",
        ),
        ("manual.csv", b"who;points;why\n00123;1;x\n", "save it as CSV, comma-separated, in UTF-8"),
        ("manual.csv", "who,points,why\n00123,1,für\n".encode("cp1252"), "save it as CSV, comma-separated, in UTF-8"),
        ("manual.csv", "who,points,why\n00123,1,x\n".encode("utf-16"), "save it as CSV, comma-separated, in UTF-8"),
        ("Manual.csv", b"", "Manual.csv is not read: marks are in manual.csv"),
        ("manual.csv.csv", b"", "manual.csv.csv is not read: marks are in manual.csv"),
        ("manual (1).csv", b"", r"manual \(1\).csv is not read: marks are in manual.csv"),
        ("manual .csv", b"", "manual .csv is not read: marks are in manual.csv"),
        ("manual.xlsx", b"", "manual.xlsx is not read: marks are in manual.csv"),
        ("manual_old.csv", b"", "manual_old.csv is not read: marks are in manual.csv"),
    ],
)
def test_a_file_of_marks_in_another_form_or_of_another_name_is_refused(tmp_path, name, content, words):
    (tmp_path / "manual.csv~").write_bytes(b"of an editor")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadMarks, match=words):
        read_marks(tmp_path / "manual.csv", CLASS)


# Records


def test_a_record_comes_back_as_it_was(tmp_path):
    one = record(
        "submission_1",
        row("napkin.training_flops", "a"),
        lost("napkin.training_days", "b", misconception="forgot", staff="ValueError: \x1b[1m", output="a\nb"),
        digest="e3", shape=(1, 2**47),
    )  # fmt: skip
    save(one, tmp_path)
    assert load(tmp_path, "submission_1") == one


def test_the_last_grade_is_kept_whatever_fails_after_it(tmp_path):
    path = path_of(tmp_path, "submission_1")
    a, b = (record("submission_1", row("napkin.training_flops", name)) for name in "ab")
    for one, kept in (
        (replace(a, status="crashed"), "crashed"),
        (a, "::test_a"),
        (replace(b, status="crashed"), "::test_a"),
        (b, "::test_b"),
    ):
        save(one, tmp_path)
        set_aside(tmp_path, ["submission_1"])
        assert not path.exists() and kept in path.with_name("results.json~").read_text()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"extra_data": {"status": "graded"}}', b"\xff"])
def test_a_file_that_is_no_record_counts_as_none(tmp_path, content):
    path = path_of(tmp_path, "submission_1")
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    assert load(tmp_path, "submission_1") is None


def test_a_file_that_does_not_fit_on_the_disk_is_not_there_in_part(tmp_path):
    (tmp_path / "report.html").write_bytes(b"before")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_atomically(tmp_path / "report.html", b"x" * 2000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"report.html": b"before"}


# Numbers


def test_rates_are_of_those_who_tried_and_suspicious_tests_are_flagged():
    def one(i: int) -> Record:
        rows = [
            row("napkin.training_flops", "everybody"),
            lost("napkin.training_days", "nobody"),
            (row if i >= 5 else lost)("napkin.max_parameters", "the_strong"),
            (row if i < 3 else lost)("napkin.bytes_per_parameter", "the_weak"),
            lost("dtypes.float_limits", "few", cause="not started") if i < 8 else row("dtypes.float_limits", "few"),
            *(
                row("memory.storage_bytes", f"m{k}") if k < i else lost("memory.storage_bytes", f"m{k}")
                for k in range(9)
            ),
        ]
        return record(f"submission_{i}", *rows)

    numbers = class_statistics([one(i) for i in range(10)], ASSIGNMENT)
    tests = {item.id.removeprefix("test_"): item for item in numbers.tests}
    assert {name: tests[name].flag for name in ("everybody", "nobody", "the_strong", "the_weak")} == {
        "everybody": "everybody passes",
        "nobody": "nobody passes",
        "the_strong": "",
        "the_weak": "the weaker do better",
    }
    assert (tests["few"].tried, tests["few"].rate) == (2, 1.0)
    assert tests["the_strong"].rate == 0.5 and tests["the_strong"].discrimination > 0.8
    assert tests["the_weak"].discrimination < -0.7
    assert numbers.causes == {"not started": (8, 8), "wrong": (10, 10 + 5 + 7 + 45)}
    assert sum(numbers.histogram()) == 10


def test_a_misconception_counts_once_a_submission():
    def wrong(i: int, name: str) -> Record:
        rows = [lost("napkin.training_flops", test, misconception=name) for test in ("a", "b")]
        return record(f"submission_{i}", *rows)

    numbers = class_statistics([wrong(1, "x"), wrong(2, "x"), wrong(3, "y"), wrong(4, "")], ASSIGNMENT)
    assert numbers.misconceptions == (("napkin.training_flops", "x", 2), ("napkin.training_flops", "y", 1))


def test_no_correlation_is_made_up():
    assert correlation([1, 2, 3], [1, 2, 3]) is None  # too few
    assert correlation([1] * 9, range(9)) is None
    assert correlation(range(9), range(9)) == pytest.approx(1.0)


# Near-identical submissions

OWN = """
def f(a, b):
    # {comment}
    total_{name} = [x * {n} + len(a) for x in range(b) if x % {n} == a.index(x)]
    for i_{name}, part in enumerate(zip(total_{name}, a[{n}:], b[:-{n}])):
        if part[0] > {n} and part[1] != sum(total_{name}):
            total_{name}.append(max(part, key=lambda p: p * {n} - i_{name}))
    while len(total_{name}) > {n}:
        total_{name} = total_{name}[{n}:] + [min(total_{name}) // {n} ** 2]
    return {{k: v * {n} for k, v in zip(total_{name}, reversed(total_{name}))}}
"""


def numbers_of(**files: str) -> tuple[int, ...]:
    return tuple(shape({name: text.encode() for name, text in files.items()}))


def test_renaming_comments_and_order_hide_nothing():
    common = reference("memory")
    shapes = {f"s{n}": numbers_of(a=common, b=OWN.format(name="x", n=n, comment=n)) for n in range(2, 30)}
    shapes["copy"] = numbers_of(a=common, b=OWN.format(name="renamed", n=7, comment="all my own work"))
    half = common.index("def storage_bytes")
    shapes["moved"] = numbers_of(
        a=common[half:] + "\n\n" + common[:half].split('"""', 2)[2], b=OWN.format(name="x", n=9, comment="")
    )
    found = similar(shapes)
    assert {"copy", "s7"} in [set(pair.submissions) for pair in found if pair.similarity == 1.0]
    assert any({"moved", "s9"} <= set(pair.submissions) for pair in found)
    assert all({"copy", "moved"} & set(pair.submissions) for pair in found)  # the common solution accuses nobody


def test_stubs_accuse_nobody():
    stubs = {path.name: path.read_text() for path in Path("student").glob("*.py")}
    assert similar({"a": numbers_of(**stubs), "b": numbers_of(**stubs)}) == []


@pytest.mark.parametrize("source", [b"def f(:", b"\0", b"x = " + b"(" * 5000, b"\xff\xfe", b"if 1:\n" * 1])
def test_a_file_that_is_no_python_has_no_shape(source):
    assert shape({"a": source}) == []


# Two runs, and two devices


def test_a_regrade_names_whose_score_changed_by_how_much_and_by_which_row(tmp_path):
    before, after = tmp_path / "before", tmp_path / "after"
    a, b = row("napkin.training_flops", "a"), row("napkin.training_days", "b", 2.0)
    for folder, rows in ((before, (a, b)), (after, (a, lost("napkin.training_days", "b", 2.0)))):
        save(record("submission_1", *rows), folder)
        save(record("submission_2", a, b), folder)
    save(record("submission_3", a, status="crashed"), before)
    save(record("submission_3", a), after)
    save(record("submission_4", a), before)
    save(record("submission_4", a, digest="another"), after)
    (before / "manual.csv").write_text("who,points,why\nsubmission_1,1,essay\n00123,1,talk\n")
    for folder in (before, after):
        save_students(
            folder, [handed_in("submission_1", ANA, BO), *(handed_in(f"submission_{i}") for i in range(2, 6))]
        )
    said = told(changes(before, after), before, after)
    assert (
        "submission_1, Ana Nuñez, =Bo  3 -> 1  -2" in said
        and "    -2  test_napkin.py::test_b: passed -> failed" in said
    )
    assert "submission_3  crashed -> 1" in said
    assert "submission_4  1 -> 1  +0  of other files" in said
    assert "3 of 5 submissions differ: 0 have more points, 1 fewer" in said
    assert said[-1].endswith(f"and {after} has none: copy it there and run `make class` again")
    book = lines(load_students(before), {}, read_marks(before / "manual.csv", load_students(before)), {})
    write_grades(before, book, ASSIGNMENT, [])
    (after / "manual.csv").write_text("who,points,why\nsubmission_1,1,essay\nsubmission_5,4,paper\n")
    said = told(changes(before, after), before, after)
    assert said[-3:] == [
        f"the grade book of {after} does not have the marks of its manual.csv: run `make class` again",
        "manual marks: submission_1, Ana Nuñez: 2 -> 1",
        "manual marks: submission_5: none -> 4",
    ]
    code, out, _ = run("regrade", before, after)
    assert code == 0 and out.splitlines() == said


def test_a_regrade_compares_what_counts_and_refuses_runs_of_other_submissions(tmp_path):
    """What was left behind by a submission that was replaced, or that has no files any more, does not."""
    before, after = tmp_path / "before", tmp_path / "after"
    for folder, make in ((before, row), (after, lost)):
        for i in (1, 2, 3):
            save(record(f"submission_{i}", make("napkin.training_flops", "a")), folder)
        save_students(folder, [handed_in("submission_1"), handed_in("submission_2", has_files=folder == before)])
    code, out, err = run("regrade", before, after)
    assert code == 0 and [line for line in out.splitlines() if line.startswith("submission_")] == [
        "submission_2  1 -> not there",
        "submission_1  1 -> 0  -1",
    ], err
    assert "2 of 2 submissions differ" in out
    save(record("submission_9", row("napkin.training_flops", "a")), tmp_path / "other")
    code, out, err = run("regrade", before, tmp_path / "other")
    assert code == 2 and "have no submission in common" in err and len(err.splitlines()) == 1 and out == ""


def test_two_who_hand_in_again_together_have_a_line_each_and_keep_their_marks(tmp_path):
    before, after = tmp_path / "before", tmp_path / "after"
    for id, points in (("submission_1", lost), ("submission_2", lost)):
        save(record(id, points("napkin.training_flops", "a")), before)
    save(record("submission_7", row("napkin.training_flops", "a"), digest="another"), after)
    (before / "manual.csv").write_text("who,points,why\n00123,2,talk\n")
    (after / "manual.csv").write_text("who,points,why\n00123,2,talk\n")
    save_students(before, [handed_in("submission_1", ANA), handed_in("submission_2", BO)])
    save_students(after, [handed_in("submission_7", ANA, BO)])
    for run_folder in (before, after):
        people = load_students(run_folder)
        write_grades(run_folder, lines(people, {}, read_marks(run_folder / "manual.csv", people), {}), ASSIGNMENT, [])
    said = told(changes(before, after), before, after)
    heads = [line for line in said if line.startswith("submission_")]
    assert heads == [f"submission_{i} -> submission_7, Ana Nuñez, =Bo  0 -> 1  +1  of other files" for i in (1, 2)]
    assert not any("manual" in line for line in said)
    (after / "manual.csv").unlink()
    (before / "manual.csv").rename(before / "elsewhere.csv")
    said = told(changes(before, after), before, after)
    assert f"{before}/manual.csv is gone, and with it the marks of submission_1, Ana Nuñez" in said


def test_who_handed_in_again_between_two_runs_is_one_line(tmp_path):
    before, after = tmp_path / "before", tmp_path / "after"
    save(record("submission_1", lost("napkin.training_flops", "a")), before)
    save(record("submission_7", row("napkin.training_flops", "a"), digest="another"), after)
    for folder, id in ((before, "submission_1"), (after, "submission_7")):
        save(record("submission_2", row("napkin.training_flops", "a")), folder)
        save_students(folder, [handed_in(id, ANA), handed_in("submission_2", BO)])
    said = told(changes(before, after), before, after)
    assert said[0] == "submission_1 -> submission_7, Ana Nuñez  0 -> 1  +1  of other files"
    assert said[-1] == "1 of 2 submissions differ: 1 have more points, 0 fewer"


@pytest.mark.parametrize("opened", [os.pipe, os.openpty])
@pytest.mark.parametrize("streams", [("stdout",), ("stdout", "stderr")], ids=" and ".join)
def test_a_command_whose_output_nobody_reads_does_its_work_without_a_word(tmp_path, streams, opened):
    """As in `make regrade | head`: the reader is gone. Or the terminal is."""
    save(record("submission_1", row("napkin.training_flops", "a")), tmp_path)
    reader, writer = opened()
    os.close(reader)
    command = [sys.executable, "-m", "autograder", "regrade", tmp_path, tmp_path]
    ended = subprocess.run(command, **{"stderr": subprocess.PIPE} | dict.fromkeys(streams, writer))
    os.close(writer)
    assert (ended.returncode, ended.stderr or b"") == (0, b"")


@pytest.mark.parametrize(
    ("status", "detail", "said"),
    [
        (
            "unreadable",
            "a\x1b[2Jb.zip is no zip",
            ["submission_1  1 -> unreadable", "    unreadable: a\ufffd[2Jb.zip is no zip"],
        ),
        (
            "no files",
            "",
            ["submission_1  1 -> 0  -1", "    no files", "    -1  test_napkin.py::test_a: passed -> failed"],
        ),
    ],
)
def test_a_regrade_says_why_a_status_changed(tmp_path, status, detail, said):
    rows = [(row if status == "unreadable" else lost)("napkin.training_flops", "a")]
    save(record("submission_1", row("napkin.training_flops", "a")), tmp_path / "before")
    save(record("submission_1", *rows, status=status, detail=detail), tmp_path / "after")
    assert (
        told(changes(tmp_path / "before", tmp_path / "after"), tmp_path / "before", tmp_path / "after")[: len(said)]
        == said
    )
    back = told(changes(tmp_path / "after", tmp_path / "before"), tmp_path / "after", tmp_path / "before")
    assert back[1] == said[1], "nor is it known why there was none before"


def test_a_merge_adds_bonus_rows_of_the_same_files_only():
    a, bonus = row("napkin.training_flops", "a"), row(BONUS.id, "gpu", BONUS.points)
    cpu = {f"submission_{i}": record(f"submission_{i}", a) for i in (1, 2, 3)}
    cpu["submission_4"] = record("submission_4", a, status="unreadable")
    cuda = {
        "submission_1": record("submission_1", lost("napkin.training_flops", "a"), bonus),
        "submission_2": record("submission_2", bonus, digest="another"),
        "submission_5": record("submission_5", bonus),
    }
    records, said = merged(cpu, cuda, ASSIGNMENT)
    assert {id: one.score for id, one in records.items()} == {
        "submission_1": 1 + BONUS.points,
        "submission_2": 1,
        "submission_3": 1,
        "submission_4": None,
    }
    assert len(said) == 4 and problems_of(records, ASSIGNMENT) == ["napkin.training_flops", BONUS.id]


@pytest.mark.parametrize(
    ("here", "device", "says"),
    [("cuda", "sim", "a run with DEVICE=cuda"), ("sim", "cuda", "a run without DEVICE=cuda")],
)
def test_grades_of_a_gpu_are_not_mixed_with_those_of_the_cpu(tmp_path, here, device, says):
    rows = row("napkin.training_flops", "a"), row("napkin.training_days", "b", device=here)
    save(record("submission_1", *rows), tmp_path)
    assert other_grades(tmp_path, ["submission_1"], device).startswith(f"{says} (submission_1): name a new folder")
    assert other_grades(tmp_path, ["submission_1"], here) is None
    save(record("submission_1", rows[0]), tmp_path)
    assert other_grades(tmp_path, ["submission_1"], device) is None, "they do not differ"


def test_another_export_takes_no_folder_over_and_one_that_lacks_a_few_submissions_names_them(tmp_path):
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "submission_metadata.yml").write_text("submission_2:\n  :submitters: []\n")
    save(record("submission_1", row("napkin.training_flops", "a")), tmp_path / "out")
    write_atomically(tmp_path / "out" / "grades.csv", b"before")
    code, out, err = run("class", tmp_path / "export", "--out", tmp_path / "out")
    assert code == 2 and out == "" and len(err.splitlines()) == 1 and "of its 1 submissions none is in this one" in err
    assert (tmp_path / "out" / "grades.csv").read_bytes() == b"before"
    save(record("submission_2", row("napkin.training_flops", "a")), tmp_path / "out")
    code, out, err = run("class", tmp_path / "export", "--out", tmp_path / "out")
    assert code == 2 and "not in the grade book, though there are results: submission_1\n" in out, err
    assert set(grades(tmp_path / "out")) == {"submission_2"}
    assert "grades.csv was edited, and is kept as grades.csv~: marks are given in manual.csv\n" in out
    assert (tmp_path / "out" / "grades.csv~").read_bytes() == b"before"


def test_a_merge_touches_neither_run_and_keeps_manual_marks(tmp_path):
    a, bonus = row("napkin.training_flops", "a"), row(BONUS.id, "gpu", BONUS.points)
    for folder, rows in ((tmp_path / "cpu", [a]), (tmp_path / "cuda", [bonus])):
        save(record("submission_1", *rows), folder)
        save_students(folder, CLASS)
    (tmp_path / "cpu" / "manual.csv").write_text("who,points,why\nsubmission_1,10,essay\nsubmission_2,1,\n")

    def content(name: str) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in (tmp_path / name).rglob("*") if path.is_file()}

    (tmp_path / "cpu" / "marks.json").write_text('{"instead": {"ana@example.edu": 10}}')
    before = content("cpu"), content("cuda")
    code, out, err = run("merge", tmp_path / "cpu", tmp_path / "cuda", "--out", tmp_path / "both")
    assert code == 0, err
    assert out.splitlines()[-1] == "canvas.csv leaves out who has neither an id nor an email: nobody (submission_2)"
    summed = f"manual marks given when there was no grade are added to one now, is that right? submission_1, Ana Nuñez: 10 + {1 + BONUS.points:g}"
    assert out.splitlines()[-2] == summed
    assert before == (content("cpu"), content("cuda"))
    assert [line["Total Score"] for line in table(tmp_path / "both" / "grades.csv")][:2] == [
        f"{11 + BONUS.points:g}"
    ] * 2
    unread = tmp_path / "cuda" / "manual.csv", tmp_path / "both" / "manual.xlsx"
    for file in unread:
        file.write_bytes(b"")
    code, out, _ = run("merge", tmp_path / "cpu", tmp_path / "cuda", "--out", tmp_path / "both")  # once more
    assert "grades.csv~" not in out and not (tmp_path / "both" / "grades.csv~").exists()
    assert code == 0 and all(f"{file} is not read: marks are in {tmp_path / 'cpu'}" in out for file in unread)
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "submission_metadata.yml").write_text("submission_1:\n  :submitters: []\n")
    code, _, err = run("class", tmp_path / "export", "--out", tmp_path / "both")  # it knows nothing of the marks
    assert code == 2 and "is what `make merge` wrote" in err and len(err.splitlines()) == 1
    code, _, err = run("merge", tmp_path / "cpu", tmp_path / "cuda", "--out", tmp_path / "cpu")
    assert code == 2 and len(err.splitlines()) == 1 and before[0] == content("cpu")
    save(replace(record("submission_1", bonus), grader="0.9+deadbeef"), tmp_path / "old")
    for folder, rows in ((tmp_path / "cpu0", [a]), (tmp_path / "cuda0", [bonus])):
        save(replace(record("submission_1", *rows), grader="0.9+deadbeef"), folder)
        save_students(folder, CLASS)
    save(record("submission_9", a), tmp_path / "others")
    for first, second, out, words in (
        ("cpu", "cpu", "x", "has no row of a bonus problem"),
        ("cuda", "cuda", "x", "has rows of bonus problems already"),
        ("cpu", "old", "x", "different versions of the grader"),
        ("cpu0", "cuda0", "x", "both runs are of another version of the grader: 0.9+deadbeef"),
        ("cpu", "cuda", "others", "has results of a run"),
    ):
        code, said, err = run("merge", tmp_path / first, tmp_path / second, "--out", tmp_path / out)
        assert code == 2 and words in err and len(err.splitlines()) == 1 and said == "", err
    for arguments in (
        ["merge", tmp_path, tmp_path / "cuda", "--out", tmp_path / "x"],
        ["regrade", tmp_path / "cpu", tmp_path],
    ):
        code, out, err = run(*arguments)
        assert code == 2 and "there are no results of a class" in err and len(err.splitlines()) == 1 and out == ""


def test_results_of_who_is_not_in_the_export_are_named_and_files_of_a_file_browser_are_nobody(tmp_path):
    for i in (1, 9):
        save(record(f"submission_{i}", row("napkin.training_flops", "a")), tmp_path)
    (tmp_path / "results" / ".DS_Store").write_bytes(b"")
    assert left_behind(tmp_path, CLASS) == ["submission_9"]
    with pytest.raises(OtherExport, match="of its 2 submissions none is in this one"):
        left_behind(tmp_path, [handed_in("submission_3")])


# The report

HOSTILE = '</script><script>document.title="owned"</script><img src=x onerror=alert(1)>'


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory) -> Path:
    """A run's folder with a report, and one without identities beside it."""
    folder = tmp_path_factory.mktemp("report")
    people = [handed_in("submission_1", ANA, BO), handed_in("submission_2", Student(HOSTILE, "Q77Z", "x@example.edu"))]
    people += [handed_in(f"submission_{i}", Student(f"Person {i}", f"{i}", f"p{i}@example.edu")) for i in range(3, 40)]
    records = {}
    for i, one in enumerate(people):
        rows = [
            row("napkin.training_flops", "a"),
            (lost if i % 3 else row)("napkin.training_days", "b", output=HOSTILE),
            *(
                row("memory.storage_bytes", f"m{k}") if k < i % 7 else lost("memory.storage_bytes", f"m{k}")
                for k in range(6)
            ),
            lost(
                "strides.flat_index", "s", cause="timeout" if i == 4 else "escape" if i == 5 else "wrong", staff=HOSTILE
            ),
        ]
        shape = tuple(range(1000 * i, 1000 * i + 50)) if i != 8 else tuple(range(7000, 7050))
        records[one.id] = record(one.id, *rows, shape=shape)
    records["submission_9"] = replace(records["submission_9"], status="crashed", detail="Ana did it")
    for anonymous in (False, True):
        place = folder / ("anonymous" if anonymous else "named")
        place.mkdir()
        write_report(place, ASSIGNMENT, people, records, lines(people, records, Marks(()), {}), anonymous)
    return folder


def text_of(path: Path) -> str:
    return html.unescape(path.read_text(encoding="utf-8"))


def test_a_report_needs_no_network_and_its_title_names_nobody(run_folder):
    page = (run_folder / "named" / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//|@import|url\(""", page)
    assert "<title>Class report</title>" in page and "default-src 'none'" in page
    assert "Ana Nuñez" in page and "results/submission_1/results.json" in page


def test_a_report_is_anonymous_if_it_is_asked_for_and_what_is_neither_yes_nor_no_is_refused():
    """What make does of it: `echo` stands in for Python, and says how it is called."""
    for value, asked in (("1", True), ("yes", True), ("true", True), ("0", False), ("no", False), ("", False)):
        for command in (["class", "EXPORT=x", "OUT=y"], ["merge", "CPU=a", "CUDA=b", "OUT=y"]):
            code, (called,), _ = made(*command, f"ANONYMOUS={value}")
            assert code == 0 and (" --anonymous " in called) == asked, value
    code, called, err = made("class", "EXPORT=x", "OUT=y", "ANONYMOUS=Nope")
    assert code == 2 and "ANONYMOUS is 1, yes or true" in err.splitlines()[0] and not called


def made(*arguments: str) -> tuple[int, list[str], str]:
    """Return the exit status, how the grader is called, and what is said on standard error."""
    ended = subprocess.run(["make", "VENV=echo", *arguments], cwd=ROOT, capture_output=True, text=True)
    return ended.returncode, [line for line in ended.stdout.splitlines() if "-m autograder" in line], ended.stderr


def test_a_report_without_identities_has_none(run_folder):
    page = text_of(run_folder / "anonymous" / "report.html")
    for word in ("Ana", "=Bo", "00123", "example.edu", "Person", "submission_", "owned", "Q77Z"):
        assert word not in page, word
    assert "No. 1" in page


@pytest.mark.parametrize("anonymous", [False, True])
def test_a_report_counts_who_has_a_grade_in_one_way_and_loses_no_rows_of_the_others(tmp_path, anonymous):
    a, missing = row("napkin.training_flops", "a"), lost("napkin.training_flops", "a", cause="missing")
    people = [handed_in(f"submission_{i}", Student(f"P{i}", "", "")) for i in (1, 2, 3)]
    records = {
        "submission_1": record("submission_1", a),
        "submission_2": record("submission_2", missing, status="no files", detail="there is ana.ipynb"),
        "submission_3": record("submission_3", missing, status="unreadable", detail="hw.zip is none"),
    }
    write_report(tmp_path, ASSIGNMENT, people, records, lines(people, records, Marks(()), {}), anonymous)
    page = text_of(tmp_path / "report.html")
    assert ("there is ana.ipynb" in page) is not anonymous
    assert "<b>2</b><span>graded</span>" in page and "with 2 submissions" in page
    lists = dict(re.findall(r"<h3>(.*?)</h3>\s*(.*?)(?=<h[23])", page, re.DOTALL))
    assert lists["Submissions without a grade"].count("<li>") == lists["Submissions without files"].count("<li>") == 1
    data = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])
    assert sorted("none" if rows is None else str(len(rows)) for _, _, rows in data["students"].values()) == [
        "0",
        "1",
        "none",
    ]
    assert class_statistics(list(records.values()), ASSIGNMENT).causes == {"missing": (1, 1)}


PROBE = """<script>
addEventListener("load", () => setTimeout(() => {
  const pages = [...document.querySelectorAll("iframe")].map(frame => {
    const page = frame.contentDocument, root = page.documentElement;
    const shown = e => e.getClientRects().length > 0;
    const texts = [...page.querySelectorAll("svg.chart text")].map(e => e.getBoundingClientRect().height);
    const rows = page.getElementById("rows");
    return {
      width: root.clientWidth, needs: root.scrollWidth, title: page.title, letters: Math.min(...texts),
      columns: page.querySelectorAll("svg.chart rect").length,
      rows: rows.hidden ? "" : rows.innerText, scripts: page.scripts.length, images: page.images.length,
      wide: [...page.querySelectorAll(".wide")].filter(shown).length,
      colour: getComputedStyle(page.body).backgroundColor,
    };
  });
  document.body.textContent = JSON.stringify(pages);
}, 300));
</script>"""


def looked_at(folder: Path, page: Path, scheme: str) -> list[dict]:
    """Return what a browser finds on a page: on a phone, on a phone at one student's rows, on a desk."""
    frames = "".join(
        f'<iframe src="{page.as_uri()}{anchor}" style="width:{width}px;height:800px;border:0"></iframe>'
        for width, anchor in ((360, ""), (360, "#s2"), (1100, ""))
    )
    return browser.found_by(f"<!doctype html><meta charset=utf-8><body>{frames}{PROBE}", folder, scheme)


@browser.needs_browser
def test_a_browser_shows_the_report_on_a_phone_and_on_a_desk(run_folder, tmp_path):
    phone, student, desk = looked_at(tmp_path, run_folder / "named" / "report.html", scheme="light")
    for page in (phone, student, desk):
        assert page["needs"] <= page["width"], "it has to be scrolled sideways"
        assert page["title"] == "Class report" and page["images"] == 0 and page["scripts"] == 2, (
            "student text became markup"
        )
        assert page["columns"] == 10 and page["letters"] >= 9, "the chart cannot be read"
    assert phone["rows"] == "" and HOSTILE in student["rows"] and "What b says." in student["rows"]
    assert phone["wide"] == 0 and desk["wide"] > 0
    dark = looked_at(tmp_path, run_folder / "named" / "report.html", scheme="dark")
    assert dark[0]["colour"] != phone["colour"]


@browser.needs_browser
def test_a_report_prints(run_folder, tmp_path):
    browser.run(tmp_path, f"--print-to-pdf={tmp_path / 'p.pdf'}", (run_folder / "named" / "report.html").as_uri())
    data = (tmp_path / "p.pdf").read_bytes()
    assert data.startswith(b"%PDF") and 2 <= len(re.findall(rb"/Type\s*/Page\b", data)) <= 12


def test_replacing_is_a_renaming_that_the_shape_sees():
    source = reference("strides")
    other = replaced(
        source, "flat_index", "def flat_index(*args):\n    return sum(len(str(a)) * 3 for a in args if a)\n"
    )
    assert numbers_of(a=source) != numbers_of(a=other)
