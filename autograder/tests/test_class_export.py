"""Gradescope's export as it really is: Ruby's YAML, what students print into it, and what file managers add."""

import io
import json
import os
import zipfile
from pathlib import Path

import pytest

from autograder.classroom.export import BadExport, Export, Files, Student, parse_metadata, read_export
from autograder.classroom.gradebook import lines, write_grades
from autograder.classroom.manual import BadMarks, read_marks
from autograder.submission import UnreadableSubmission
from autograder.tests.handed_in import write
from handout.problems import load_assignment

MODULES = frozenset({"memory", "napkin"})
PERSON = "  :submitters:\n  - :name: Ana\n    :sid: '1'\n    :email: ana@example.edu\n"


def students(text: str) -> dict[str, tuple[Student, ...]]:
    return {id: people for id, (people, _) in parse_metadata(text)[0].items()}


def person(fields: str) -> Student:
    (student,) = students(f"submission_1:\n  :submitters:\n  - {fields}\n")["submission_1"]
    return student


@pytest.mark.parametrize(
    ("fields", "student"),
    [
        (":name: Ana\n    :sid: '00123'\n    :email: a@b.c", Student("Ana", "00123", "a@b.c")),
        (":name: Ana\n    :sid: 00123", Student("Ana", "00123", "")),  # as a number it would be octal
        (":name: Ana\n    :sid: 1e5", Student("Ana", "1e5", "")),
        (":name: Ana\n    :email: a@b.c", Student("Ana", "", "a@b.c")),
        (":name: Ana\n    :sid: \n    :email: ~", Student("Ana", "", "")),
        (":name: 'Null'\n    :sid: null", Student("Null", "", "")),
        (":name: No\n    :sid: '1'", Student("No", "1", "")),
        (':name: "No\\u00EBl \\u4F1F"', Student("Noël 伟", "", "")),
        (":name: Žofia Nuñez", Student("Žofia Nuñez", "", "")),
        ("name: Ana\n    sid: '1'", Student("Ana", "1", "")),  # without Ruby's colons
        (':name: "two\\n lines"', Student("two lines", "", "")),
        (
            ":name: !binary |-\n      xb1vZmlhIE51w7Fleg==\n    :sid: '1'",
            Student("Žofia Nuñez", "1", ""),
        ),  # as Ruby writes it
        (":name: !binary |-\n      TnXxZXo=", Student("Nu\N{REPLACEMENT CHARACTER}ez", "", "")),
        (":name: !binary is-none", Student("is-none", "", "")),
    ],
)
def test_what_a_student_is_called_is_text(fields, student):
    assert person(fields) == student


def test_a_group_has_several_students_and_a_submission_may_have_none():
    text = f"submission_1:\n{PERSON}  - :name: Bo\nsubmission_2:\n  :submitters: []\n"
    found = students(text)
    assert [student.name for student in found["submission_1"]] == ["Ana", "Bo"]
    assert found["submission_2"] == ()


@pytest.mark.parametrize(
    "output",
    [
        'output: "a\n...\nb"',  # three dots that a test printed, in a quoted text
        'output: "a\n---\nb"',
        "output: |-\n      a\n...\n    score: 1",
        "output: 'a\n\n'",  # a closing quote in the first column
    ],
)
def test_a_line_of_dots_does_not_end_the_file(output):
    text = f"submission_1:\n{PERSON}  :results:\n    {output}\n...\nsubmission_2:\n{PERSON}"
    assert {id: len(people) for id, people in students(text).items()} == {"submission_1": 1, "submission_2": 1}


def test_tags_of_ruby_are_no_obstacle():
    text = f"submission_1: !ruby/hash:ActiveSupport::HashWithIndifferentAccess\n{PERSON}"
    assert students(text)["submission_1"][0].name == "Ana"


def test_an_entry_that_is_no_yaml_costs_its_own_names_only():
    text = f"submission_1:\n{PERSON}submission_2:\n  :submitters: [\nsubmission_3:\n{PERSON}"
    for bad in (text, text.replace("[\n", '"\x07"\n')):
        entries, warnings = parse_metadata(bad)
        assert {id: len(people) for id, (people, _) in entries.items()} == {
            "submission_1": 1,
            "submission_2": 0,
            "submission_3": 1,
        }
        assert len(warnings) == 1 and "submission_2" in warnings[0] and len(warnings[0].splitlines()) == 1


def test_nobody_takes_anothers_place_by_printing_yaml():
    forged = f"submission_1:\n{PERSON.replace('Ana', 'Mallory')}"
    text = f"submission_1:\n{PERSON}submission_2:\n{PERSON}  :results: [\n{forged}submission_3:\n{PERSON}"
    entries, warnings = parse_metadata(text)
    assert entries["submission_1"][0] == () and any("submission_1" in warning for warning in warnings)


@pytest.mark.parametrize("text", ["", "- a\n- b\n", ":\n  : :\n :::bad", "submission_1: [\n"])
def test_what_is_no_metadata_is_refused(tmp_path, text):
    write(tmp_path, {"submission_metadata.yml": text})
    with pytest.raises(BadExport):
        read_export(Files(tmp_path))


# Folders and zips

EXPORT = {
    "submission_metadata.yml": f"submission_1:\n{PERSON}submission_2:\n  :submitters: []\nsubmission_3:\n  :submitters: []\n"
    "submission_5:\n  :submitters: []\n",
    ".DS_Store": b"\0",
    "submission_1/student/memory.py": "x = 1",
    "submission_1/.DS_Store": b"\0",
    "submission_1/__MACOSX/._memory.py": b"\0",
    "submission_2/hw.zip": b"PK\3\4 cut off",
    "submission_4/napkin.py": "y = 1",
    "submission_5/": b"",
}


def zipped(files: dict[str, str | bytes], prefix: str = "", method: int = zipfile.ZIP_STORED) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(prefix + name, content)
    return data.getvalue()


@pytest.fixture(
    params=[
        "folder",
        "folder in a folder",
        "zip",
        "zip without its folder",
        "zip made again on a Mac",
        "zip by another program",
    ]
)
def exported(request, tmp_path) -> Path:
    """An export in each form that it comes in."""
    if request.param == "folder":
        return unpacked(tmp_path / "e", EXPORT)
    if request.param == "folder in a folder":
        unpacked(tmp_path / "e" / "assignment_5_export", EXPORT)
        return tmp_path / "e"
    files, prefix = EXPORT, "" if "without" in request.param else "assignment_5_export/"
    if "Mac" in request.param:
        noise = {"__MACOSX/._submission_1": b"\0", "__MACOSX/submission_metadata.yml": b"\0"}
        files = {**noise, **EXPORT}
    if "another" in request.param:  # one whose names begin with ./, and not all of them
        prefix = ""
        files = {("./" if "2" not in name else "") + name: content for name, content in EXPORT.items()}
    (tmp_path / "e.zip").write_bytes(zipped(files, prefix))
    return tmp_path / "e.zip"


def unpacked(folder: Path, files: dict[str, str | bytes]) -> Path:
    """Write files, and the folders whose names end in a slash."""
    for name in files:
        if name.endswith("/"):
            (folder / name).mkdir(parents=True)
    return write(folder, {name: content for name, content in files.items() if not name.endswith("/")})


def read(path: Path) -> tuple[Files, Export]:
    files = Files(path)
    return files, read_export(files)


def test_every_form_of_an_export_reads_the_same(exported):
    files, export = read(exported)
    assert [(one.id, len(one.students), one.has_files) for one in export.handed_in] == [
        ("submission_1", 1, True),
        ("submission_2", 0, True),
        ("submission_3", 0, False),
        ("submission_4", 0, True),
        ("submission_5", 0, False),
    ]
    assert [warning.split()[0] for warning in export.warnings] == ["submission_4", "submission_3", "submission_5"]
    assert dict(files.read("submission_1", MODULES).files) == {"memory.py": b"x = 1"}
    assert dict(files.read("submission_4", MODULES).files) == {"napkin.py": b"y = 1"}
    with pytest.raises(UnreadableSubmission):
        files.read("submission_2", MODULES)


@pytest.mark.parametrize("as_zip", [False, True])
def test_a_zip_that_gradescope_has_not_unpacked_is_read(tmp_path, as_zip):
    inner = zipped({"student/memory.py": "z = 1"})
    files = {"submission_metadata.yml": f"submission_1:\n{PERSON}", "submission_1/Homework.ZIP": inner}
    write(tmp_path / "e", files)
    (tmp_path / "e.zip").write_bytes(zipped(files))
    opened = Files(tmp_path / ("e.zip" if as_zip else "e"))
    assert dict(opened.read("submission_1", MODULES).files) == {"memory.py": b"z = 1"}


BIG = {"student/memory.py": "z = 1", "student/data.py": "#" * (2 << 20), "old.tar": b"x"}
NESTED = {
    "is what was handed in": {"submission_1/hw.zip": zipped(BIG)},
    "is in a folder": {"submission_1/hw/hw.zip": zipped(BIG)},
    "is one of two": {"submission_1/b.zip": zipped(BIG), "submission_1/a.zip": zipped(BIG)},
    "has an ending of capitals, and a Mac's noise": {
        "submission_1/HW.ZIP": zipped(BIG),
        "submission_1/__MACOSX/._HW.ZIP": b"\0",
        "submission_1/._HW.ZIP": b"\0",
    },
    "is none": {"submission_1/hw.zip": b"PK\3\4 cut off"},
    "lies beside files": {"submission_1/z.zip": b"", "submission_1/memory.py": "m", "submission_1/a.rar": b""},
}


def student_reads(files: Files) -> tuple[object, ...]:
    try:
        found = files.read("submission_1", MODULES)
    except UnreadableSubmission as error:
        return (str(error),)
    return dict(found.files), found.origin, found.notes


@pytest.mark.parametrize("zip_that", NESTED)
def test_a_submission_reads_the_same_from_a_folder_and_from_a_zip(tmp_path, zip_that):
    export = {"submission_metadata.yml": f"submission_1:\n{PERSON}", **NESTED[zip_that]}
    write(tmp_path / "e", export)
    (tmp_path / "e.zip").write_bytes(zipped(export))
    from_folder, from_zip = (student_reads(Files(tmp_path / name)) for name in ("e", "e.zip"))
    assert from_folder == from_zip
    if zip_that in ("is what was handed in", "is in a folder", "has an ending of capitals, and a Mac's noise"):
        assert (
            len(from_zip[2]) == 2 and "larger than 1 MiB" in str(from_zip) and "old.tar was not opened" in str(from_zip)
        )


TWO = {"student/memory.py": "x = 1", "student/napkin.py": "y = 1"}


@pytest.mark.parametrize("form", ["zip", "file", "folder"])
def test_damage_in_the_export_is_not_the_students_doing(tmp_path, monkeypatch, form):
    """What is left of the submission would be graded, and the student would pay for our disk."""
    export = {"submission_metadata.yml": f"submission_1:\n{PERSON}"}
    export |= {f"submission_1/{name}": content for name, content in TWO.items()}
    (tmp_path / "e.zip").write_bytes(zipped(export).replace(b"x = 1", b"x = 2"))
    files = Files(tmp_path / "e.zip" if form == "zip" else write(tmp_path / "e", export))

    def shut(real, name):
        def call(path, *arguments, **options):
            if str(path).endswith(name):
                raise PermissionError(13, "Permission denied", path)
            return real(path, *arguments, **options)

        return call

    if form == "file":
        monkeypatch.setattr(os, "open", shut(os.open, "memory.py"))
    if form == "folder":
        monkeypatch.setattr(os, "scandir", shut(os.scandir, "student"))
    with pytest.raises(
        UnreadableSubmission, match=f"^in the export student/{'' if form == 'folder' else 'memory.py'} "
    ):
        files.read("submission_1", MODULES)


def test_damage_in_a_zip_that_was_handed_in_is_the_students_doing(tmp_path):
    inner = zipped(TWO).replace(b"x = 1", b"x = 2")
    files = {"submission_metadata.yml": f"submission_1:\n{PERSON}", "submission_1/hw.zip": inner}
    found = Files(write(tmp_path / "e", files)).read("submission_1", MODULES)
    assert dict(found.files) == {"napkin.py": b"y = 1"} and "memory.py is damaged" in found.notes[0]


def encrypted(archive: bytes) -> bytes:
    data = bytearray(archive)
    for signature, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        data[data.index(signature) + flags] |= 1
    return bytes(data)


HW = zipped({"student/memory.py": "z = 1"})
NOT_OPENED = "was not opened: a zip is, if it is the only one and in no other"
FEW_READ = "is compressed in a way that few programs read"
NOTHING = "No file is called as one of the assignment's is, such as memory.py: there is"


def test_an_export_packed_again_as_few_programs_do_gives_no_grade_of_a_part(tmp_path):
    with zipfile.ZipFile(tmp_path / "e.zip", "w") as archive:
        archive.writestr("submission_metadata.yml", f"submission_1:\n{PERSON}")
        archive.writestr("submission_1/memory.py", "x = 1")
        archive.writestr("submission_1/napkin.py", "y = 1", zipfile.ZIP_BZIP2)
    with pytest.raises(UnreadableSubmission, match=f"in the export .*napkin.py {FEW_READ}"):
        Files(tmp_path / "e.zip").read("submission_1", MODULES)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"hw.zip": HW, "hw (1).zip": HW}, f"hw (1).zip, hw.zip {NOT_OPENED}"),
        ({f"{i}.zip": HW for i in range(9)}, f"0.zip, 1.zip, 2.zip and 6 more {NOT_OPENED}"),
        ({"student.tar.gz": b"\x1f\x8b", "a/main.py": "x"}, f"student.tar.gz {NOT_OPENED}"),
        ({"hw.zip": zipped({"inner.zip": HW})}, f"in hw.zip inner.zip {NOT_OPENED}"),
        ({"hw.zip": zipped({"main.py": "x"}), "a.rar": b"Rar!"}, f"a.rar {NOT_OPENED}"),
        ({"hw.zip": encrypted(HW)}, "in hw.zip student/memory.py is damaged or encrypted in the zip"),
        ({"hw.zip": HW.replace(b"z = 1", b"z = 2")}, "in hw.zip student/memory.py is damaged or encrypted in the zip"),
        ({"hw.zip": zipped({"memory.py": "x"}, "", zipfile.ZIP_LZMA)}, f"in hw.zip memory.py {FEW_READ}"),
        ({"napkin (1).py": "x", "README.txt": "x"}, f"{NOTHING} napkin (1).py."),
        ({"NAPKIN.PY": "x"}, f"{NOTHING} NAPKIN.PY."),
        ({"student.ipynb": "{}", "napkin.ipynb": "{}"}, f"{NOTHING} napkin.ipynb, student.ipynb."),
        ({f"{i}.py": "" for i in range(9)}, f"{NOTHING} 0.py, 1.py, 2.py and 6 more."),
        ({"hw.zip": zipped({"main.py": "x"}), "napkin (1).py": ""}, f"{NOTHING} main.py. {NOTHING} napkin (1).py."),
        ({"memory.py": "#" * (1 << 20) + "#"}, "memory.py is larger than 1 MiB, and was left out."),
        ({"report.pdf": "x"}, ""),
    ],
)
def test_what_was_handed_in_instead_of_the_assignment_is_named(tmp_path, files, said):
    """What cannot be opened may be all of it: no grade. What can be, and is something else, is a grade of 0, and why."""
    named = {f"submission_1/{name}": content for name, content in files.items()}
    opened = Files(write(tmp_path / "e", {"submission_metadata.yml": f"submission_1:\n{PERSON}", **named}))
    if said.startswith((NOTHING, "memory.py")) or not said:
        found = opened.read("submission_1", MODULES)
        assert (dict(found.files), " ".join(found.notes)) == ({}, said)
    else:
        with pytest.raises(UnreadableSubmission) as error:
            opened.read("submission_1", MODULES)
        assert str(error.value) == said


def test_a_zip_bomb_is_not_unpacked(tmp_path):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("submission_metadata.yml", f"submission_1:\n{PERSON}")
        archive.writestr("submission_1/hw.zip", b"\0" * (129 << 20))
    (tmp_path / "e.zip").write_bytes(data.getvalue())
    with pytest.raises(UnreadableSubmission, match="larger"):
        Files(tmp_path / "e.zip").read("submission_1", MODULES)


@pytest.mark.parametrize("kind", ["nothing", "empty folder", "no zip", "zip of something else"])
def test_what_is_no_export_is_refused_with_one_line(tmp_path, kind):
    path = tmp_path / "e"
    if kind == "empty folder":
        path.mkdir()
    elif kind == "no zip":
        path.write_bytes(b"PK\3\4 cut")
    elif kind == "zip of something else":
        path.write_bytes(zipped({"a": "b"}))
    with pytest.raises(BadExport) as error:
        read_export(Files(path))
    assert str(path) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("as_zip", [False, True])
@pytest.mark.parametrize("places", [("a", "b"), ("a", "b/c"), ("", "submission_1"), ("a", "a/submission_1")])
def test_two_exports_in_one_place_are_refused_and_named(tmp_path, places, as_zip):
    """But a file of that name which a student handed in is no export."""
    metadata = {f"{place}/submission_metadata.yml".lstrip("/"): f"submission_1:\n{PERSON}" for place in places}
    write(tmp_path / "e", metadata)
    (tmp_path / "e.zip").write_bytes(zipped(metadata))
    path = tmp_path / ("e.zip" if as_zip else "e")
    if "submission_1" in places[1]:
        assert [one.id for one in read(path)[1].handed_in] == ["submission_1"]
        return
    with pytest.raises(BadExport) as error:
        read(path)
    assert f"{path} holds more than one export, in {places[0]} and in {places[1]}" in str(error.value)


def test_submissions_are_in_the_order_of_their_numbers(tmp_path):
    text = "".join(f"submission_{number}:\n  :submitters: []\n" for number in (100, 9, 20))
    write(tmp_path, {"submission_metadata.yml": text})
    assert [one.id for one in read(tmp_path)[1].handed_in] == ["submission_9", "submission_20", "submission_100"]


def test_one_student_in_two_submissions_is_noticed(tmp_path):
    write(tmp_path, {"submission_metadata.yml": f"submission_1:\n{PERSON}submission_2:\n{PERSON}"})
    assert any("same student" in warning for warning in read(tmp_path)[1].warnings)


def test_an_id_that_people_with_different_emails_share_is_nobodys(tmp_path):
    other = PERSON.replace("Ana", "Bo").replace("ana@", "bo@")
    text = f"submission_1:\n{PERSON}submission_2:\n{other}submission_3:\n{PERSON}".replace("'1'", "N/A")
    (tmp_path / "submission_metadata.yml").write_text(text)
    export = read_export(Files(tmp_path))
    said = [line for line in export.warnings if "no file" not in line]
    assert said == [
        "2 emails share the id N/A, which is not used",
        "submission_3 and submission_1 are of the same student",
    ]
    (tmp_path / "manual.csv").write_text("who,points,why\nbo@example.edu,2,\n")
    book = lines(export.handed_in, {}, read_marks(tmp_path / "manual.csv", export.handed_in), {})
    write_grades(tmp_path, book, load_assignment(), [])
    assert '"Bo","","","bo@example.edu","",2' in (tmp_path / "canvas.csv").read_text()
    (tmp_path / "manual.csv").write_text("who,points,why\nN/A,2,\n")
    with pytest.raises(BadMarks, match="'N/A' is the id of people with different emails"):
        read_marks(tmp_path / "manual.csv", export.handed_in)


@pytest.mark.parametrize("field", ["sid", "email"])
def test_one_student_under_two_names_is_noticed(tmp_path, field):
    people = [f"  :submitters:\n  - :name: {name}\n    :{field}: '0071'\n" for name in ("Ann", "Ann B.")]
    write(tmp_path, {"submission_metadata.yml": f"submission_1:\n{people[0]}submission_2:\n{people[1]}"})
    assert "submission_2 and submission_1 are of the same student" in read(tmp_path)[1].warnings


def test_a_submission_that_is_named_twice_is_noticed(tmp_path):
    other = PERSON.replace("name:", "name: Not")
    write(
        tmp_path, {"submission_metadata.yml": f"submission_1:\n{PERSON}submission_2:\n{PERSON}submission_1:\n{other}"}
    )
    assert any("twice" in warning for warning in read(tmp_path)[1].warnings)


def test_a_folder_that_nobody_names_is_noticed(tmp_path):
    named = {"late_bob/napkin.py": "", "\x1b[2J\nclass: all is well/x": "", ".git/x": ""}
    write(tmp_path, {"submission_metadata.yml": f"submission_1:\n{PERSON}", **named})
    warnings = read(tmp_path)[1].warnings
    assert [warning for warning in warnings if "it is not graded" in warning] == [
        "the folder \ufffd[2J\ufffdclass: all is well is not in submission_metadata.yml: it is not graded",
        "the folder late_bob is not in submission_metadata.yml: it is not graded",
    ]


@pytest.mark.parametrize("as_zip", [False, True])
@pytest.mark.parametrize("name", ["..", ".", "../secret", "/etc", "a/b", ".git", "", "a\n../b", "x" * 300])
def test_a_name_that_leaves_the_export_is_left_out_with_one_line(tmp_path, name, as_zip):
    files = {
        "submission_metadata.yml": f"submission_1:\n{PERSON}{json.dumps(name)}:\n{PERSON.replace('1', '2')}",
        "secret/memory.py": "",
    }
    write(tmp_path / "e", files)
    (tmp_path / "e.zip").write_bytes(zipped(files | {"e/../memory.py": "", "e/./memory.py": ""}, "e/"))
    export = read(tmp_path / ("e.zip" if as_zip else "e"))[1]
    assert [one.id for one in export.handed_in] == ["submission_1"]
    (warning,) = [warning for warning in export.warnings if "names no folder" in warning]
    assert len(warning.splitlines()) == 1 and "submission_metadata.yml" in warning and len(warning) < 300


def test_windows_line_ends_cost_no_names(tmp_path):
    text = f'submission_1:\n{PERSON}  :results: "\x07"\nsubmission_2:\n{PERSON.replace("Ana", "Bob")}'.replace(
        "\n", "\r\n"
    )
    (tmp_path / "submission_metadata.yml").write_bytes(text.encode())
    assert read(tmp_path)[1].handed_in[1].students
