"""Finding the student's package in what students really hand in."""

import io
import lzma
import os
import random
import stat
import struct
import sys
import time
import tracemalloc
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from autograder.submission import Submission, UnreadableSubmission, read_submission
from autograder.tests.handed_in import reference, write

MODULES = frozenset({"memory", "optimizers", "data"})
PACKAGE = {"memory.py": "m = 1\n", "optimizers.py": "o = 1\n"}
FILES = {name: content.encode() for name, content in PACKAGE.items()}


def below(folder: str, files: Mapping[str, str | bytes] = PACKAGE) -> dict[str, str | bytes]:
    return {f"{folder}/{name}": content for name, content in files.items()}


def zipped(path: Path, files: Mapping[str, str | bytes], change: Callable[[zipfile.ZipInfo], object] = id) -> Path:
    """Write a zip whose entries `change` may alter before they are written."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            change(entry)
            archive.writestr(entry, content)
    return path


@pytest.fixture(params=["folder", "zip"])
def read(request, tmp_path) -> Callable[[Mapping[str, str | bytes]], Submission]:
    """Hand in files as a folder, and as a zip."""

    def read(files):
        if request.param == "folder":
            return read_submission(write(tmp_path / "handed in", files), MODULES)
        return read_submission(zipped(tmp_path / "handed in.zip", files), MODULES)

    return read


# Shapes


@pytest.mark.parametrize(
    ("files", "origin"),
    [
        (PACKAGE, ""),
        (below("student"), "student"),
        (below("my assignment"), "my assignment"),
        (below("jo-hw2/student"), "jo-hw2/student"),
        (below("a/b/c/d"), "a/b/c/d"),
        (below("Übung 2 – 日本語"), "Übung 2 – 日本語"),
        (below("student/student"), "student/student"),
        ({**below("repo/student"), "repo/tests/test_memory.py": "t", "repo/handout/problems.py": "h"}, "repo/student"),
    ],
)
def test_the_package_is_found_wherever_it_lies(read, files, origin):
    submission = read(files)
    assert (dict(submission.files), submission.origin, submission.notes) == (FILES, origin, ())


def test_a_student_folder_goes_before_copies_of_it(read):
    submission = read({
        **below("repo/student"),
        **below("repo/reference copy", {**PACKAGE, "data.py": "d = 1\n"}),
        **below("repo", {"memory.py": "old = 1\n"}),
    })  # fmt: skip
    assert submission.origin == "repo/student" and submission.files == FILES
    assert [note.split("/ looks")[0] for note in submission.notes] == ["repo/reference copy", "repo"]
    assert all("was not graded; repo/student/ was" in note for note in submission.notes)


def test_the_folder_that_holds_most_goes_first_and_then_the_shallowest(read):
    submission = read({"a/memory.py": "a", **below("b"), **below("c/d")})
    assert (submission.origin, submission.files) == ("b", FILES)
    assert len(submission.notes) == 2


def test_a_submission_of_one_file_is_enough(read):
    submission = read({"hw/memory.py": "m = 1\n"})
    assert submission.files == {"memory.py": b"m = 1\n"} and submission.origin == "hw"


def test_files_of_the_students_own_come_along(read):
    more = {"common.py": "c", "extra/parts.py": "p", "extra/__init__.py": "", "__init__.py": ""}
    assert set(read(below("student", {**PACKAGE, **more})).files) == {*PACKAGE, *more}


def test_the_noise_of_macos_and_of_tools_is_left_out(read):
    noise = {
        **below("__MACOSX/student", {"._memory.py": b"\0\5\x16\7", "memory.py": "noise"}),
        **below("student", {"._memory.py": b"\0\5\x16\7", ".DS_Store": b"\0", "._.DS_Store": b"\0", "notes.txt": "n"}),
        **below("student/__pycache__", {"memory.cpython-311.pyc": b"\0", "memory.py": "noise"}),
        **below("student/.ipynb_checkpoints", {"memory-checkpoint.py": "noise", "memory.py": "noise"}),
        **below(".git/hooks", {"memory.py": "noise"}),
        **below(".venv/lib/python3.11/site-packages/student", {"memory.py": "noise"}),
        **below("venv/lib/python3.11/site-packages/student", {"memory.py": "noise"}),
    }
    submission = read({**noise, **below("student")})
    assert (submission.files, submission.origin, submission.notes) == (FILES, "student", ())


@pytest.mark.parametrize(
    "files", [{}, {"readme.txt": "x"}, {"main.py": "x"}, {"memory.PY": "x"}, {"memory.py.txt": "x"}]
)
def test_without_any_of_the_files_there_is_nothing(read, files):
    assert read(files).files == {}


@pytest.mark.parametrize("name", ["Memory.py", "MEMORY.py", "memory/__init__.py"])
def test_a_file_of_another_spelling_shows_the_folder_and_is_not_taken_for_the_file(read, name):
    assert read({f"hw/{name}": "x", "hw/extra.py": "x"}).files == {name: b"x", "extra.py": b"x"}
    right = read({f"hw/{name}": "x", "hw/Optimizers.py": "x", "other/student/memory.py": "right"})
    assert right.files == {"memory.py": b"right"}


@pytest.mark.parametrize("name", ["student.zip", "hw/student.ZIP", "work.tar.gz"])
def test_a_packed_file_among_the_files_is_named(read, name):
    (note,) = read({name: "x", "readme.txt": "x"}).notes
    assert note == f"{name} was not opened: if your files are in it, unpack it and hand in what it holds."


def test_packed_files_that_are_no_work_of_the_students_are_not_named(read):
    assert read({"__MACOSX/student.zip": "x", ".git/student.zip": "x"}).notes == ()


def test_very_many_packed_files_are_not_all_named(read):
    assert len(read({f"{i}.zip": "x" for i in range(500)}).notes) == 21  # the last says that there are more


def test_an_empty_folder_is_an_empty_submission(tmp_path):
    assert read_submission(tmp_path, MODULES) == Submission({}, "", ())


def test_content_is_kept_byte_for_byte(read):
    contents = {
        "memory.py": b"\xef\xbb\xbfx = 1\r\ny = '\xc3\xa9'\r\n",
        "optimizers.py": b"x = '\xff'\0\r",
        "data.py": b"",
    }
    assert read(below("student", contents)).files == contents


def test_what_is_too_large_is_left_out_and_said(read):
    submission = read({**PACKAGE, "data.py": b"#" * ((1 << 20) + 1)})
    assert submission.files == FILES
    assert submission.notes == ("data.py is larger than 1 MiB, and was left out.",)
    assert read({"memory.py": b"#" * (1 << 20)}).files["memory.py"] == b"#" * (1 << 20)


def test_very_many_python_files_are_cut_and_said(read):
    submission = read({**PACKAGE, **{f"x{i}.py": "" for i in range(600)}})
    assert len(submission.files) <= 500
    assert any("first 500 Python files" in note for note in submission.notes)
    assert FILES.items() <= submission.files.items()


def test_all_files_together_are_bounded(read):
    """The grader keeps them in memory: 500 files of 1 MiB would be more than Gradescope's container has."""
    content = bytes(random.Random(0).randbytes(1 << 10)) * (1 << 10)
    submission = read({**{f"a{i:02}.py": content for i in range(60)}, "memory.py": "m"})
    assert sum(map(len, submission.files.values())) <= 32 << 20
    assert submission.notes and submission.files["memory.py"] == b"m"


def test_submissions_are_written_for_everybody_to_read_and_nobody_to_write(tmp_path):
    Submission({"memory.py": b"m", "a/b/c.py": b"c"}, "", ()).write(tmp_path / "package")
    for path in (tmp_path / "package", *(tmp_path / "package").rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o755 if path.is_dir() else 0o444)
    assert (tmp_path / "package/a/b/c.py").read_bytes() == b"c"


# Folders that want more than to be read


def test_links_are_not_followed(tmp_path):
    secret = write(tmp_path / "secret", {"memory.py": "secret", "more/optimizers.py": "secret"})
    handed_in = write(tmp_path / "handed in", {"optimizers.py": "o = 1\n"})
    (handed_in / "memory.py").symlink_to(secret / "memory.py")
    (handed_in / "data.py").symlink_to("/etc/shadow")
    (handed_in / "dangling.py").symlink_to("nowhere")
    (handed_in / "loop.py").symlink_to("loop.py")
    (handed_in / "more").symlink_to(secret / "more")
    (handed_in / "student").symlink_to(secret)
    submission = read_submission(handed_in, MODULES)
    assert submission.files == {"optimizers.py": b"o = 1\n"}
    assert len(submission.notes) == 4 and all("is a link" in note for note in submission.notes)


def test_a_link_to_the_whole_submission_may_be_named(tmp_path):
    """It is whoever grades who names it."""
    write(tmp_path / "real", PACKAGE)
    (tmp_path / "link").symlink_to("real")
    assert read_submission(tmp_path / "link", MODULES).files == FILES


@pytest.mark.parametrize("kind", ["fifo", "socket", "folder"])
def test_what_is_no_file_does_not_hold_up_the_grader(tmp_path, kind):
    write(tmp_path, {"optimizers.py": "o = 1\n"})
    path = tmp_path / "memory.py"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        import socket

        here = os.open(".", os.O_RDONLY)
        os.chdir(tmp_path)  # a socket's path may have 100 characters
        try:
            socket.socket(socket.AF_UNIX).bind("memory.py")
        finally:
            os.fchdir(here)
            os.close(here)
    else:
        path.mkdir()
    submission = read_submission(tmp_path, MODULES)
    assert submission.files == {"optimizers.py": b"o = 1\n"}
    assert kind == "folder" or ["memory.py" in note for note in submission.notes] == [True]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root, to be somebody else")
@pytest.mark.parametrize("name", ["memory.py", ".", "handed in"])
def test_what_the_grader_cannot_read_is_said(tmp_path, name):
    tmp_path.chmod(0o755)
    for folder in list(tmp_path.parents)[:-2]:
        folder.chmod(folder.stat().st_mode | 0o055)
    folder = write(tmp_path / "handed in", PACKAGE)
    folder.chmod(0o755)
    shut = folder / name if name != "handed in" else tmp_path
    shut.chmod(0)
    pid = os.fork()
    if pid == 0:
        try:
            os.setresuid(65534, 65534, 65534)
            if name == "memory.py":
                submission = read_submission(folder, MODULES)
                ok = list(submission.files) == ["optimizers.py"] and "cannot be read" in submission.notes[0]
            else:
                try:
                    read_submission(folder, MODULES)
                    ok = False
                except UnreadableSubmission:
                    ok = True
            os._exit(0 if ok else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    shut.chmod(0o755)


def test_a_hundred_thousand_files_take_no_time(tmp_path):
    write(tmp_path, PACKAGE)
    (tmp_path / "images").mkdir()
    folder = os.open(tmp_path / "images", os.O_RDONLY)
    for i in range(100_000):
        os.close(os.open(f"{i}.txt", os.O_CREAT, dir_fd=folder))
    os.close(folder)
    start = time.monotonic()
    assert read_submission(tmp_path, MODULES) == Submission(FILES, "", ())
    assert time.monotonic() - start < 10


def test_what_lies_beside_the_package_does_not_push_it_out(read):
    beside = {f"a/x{i}.py": "x" for i in range(700)} | {"b/large.py": b"#" * (2 << 20)}
    assert read(below("student") | beside) == Submission(FILES, "student", ())


def test_folders_of_any_depth_are_walked(tmp_path):
    here = os.open(".", os.O_RDONLY)
    write(tmp_path, PACKAGE)
    os.chdir(tmp_path)
    try:
        for _ in range(300):
            Path("d").mkdir()
            os.chdir("d")
    finally:
        os.fchdir(here)
        os.close(here)
    assert read_submission(tmp_path, MODULES).files == FILES


def test_names_that_are_no_text_do_no_harm(tmp_path):
    write(tmp_path, PACKAGE)
    for name in (b"\xff\xfe.py", b"a\nb.py", b"\x1b[31mred.py", b"[bold]b.py"):
        Path(os.fsdecode(bytes(tmp_path) + b"/" + name)).write_text("x")
    submission = read_submission(tmp_path, MODULES)
    assert set(submission.files) == {*PACKAGE, "[bold]b.py"}
    assert len(submission.notes) == 3 and all(note.isprintable() for note in submission.notes)
    submission.write(tmp_path / "written")


# Zips that want more than to be read


def the_notes_of(path: Path) -> tuple[str, ...]:
    submission = read_submission(path, MODULES)
    assert {name: submission.files[name] for name in FILES} == FILES
    return submission.notes


@pytest.mark.parametrize(
    "name",
    ["../data.py", "a/../../data.py", "/data.py", "/etc/data.py", "..\\data.py", "\\data.py", "student/../data.py"],
)
def test_no_zip_reaches_out_of_its_folder(tmp_path, name):
    submission = read_submission(zipped(tmp_path / "s.zip", {name: "x", **PACKAGE}), MODULES)
    assert submission.files == FILES
    submission.write(tmp_path / "a")
    assert sorted(path.name for path in tmp_path.rglob("*.py")) == sorted(FILES)


def test_backslashes_are_slashes(tmp_path):
    path = zipped(tmp_path / "s.zip", {f"jo\\student\\{name}": content for name, content in PACKAGE.items()})
    assert read_submission(path, MODULES).origin == "jo/student"


def test_the_last_of_two_entries_of_one_name_counts(tmp_path):
    """As it does for whoever unpacks the zip."""
    path = tmp_path / "s.zip"
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "w") as archive:
        for content in ("first", "m = 1\n"):
            archive.writestr("memory.py", content)
        archive.writestr("optimizers.py", "o = 1\n")
    assert read_submission(path, MODULES).files == FILES


@pytest.mark.parametrize("first", [True, False])
def test_a_name_that_is_a_file_and_a_folder_does_not_break_the_grader(tmp_path, first):
    entries = [("memory.py", "m = 1\n"), ("memory.py/x.py", "x"), ("optimizers.py", "o = 1\n")]
    submission = read_submission(zipped(tmp_path / "s.zip", dict(entries if first else entries[::-1])), MODULES)
    submission.write(tmp_path / "package")
    assert (tmp_path / "package/memory.py").read_text() == "m = 1\n"


@pytest.mark.parametrize(
    "name",
    [
        "x" * 300 + ".py",
        "/".join(["d" * 200] * 7) + "/x.py",
        "é" * 200 + ".py",
        "a\nb.py",
        "\x1b[31m.py",
        " .py",
        ".py",
        "~.py",
        "a:b.py",
        "con.py",
    ],
)
def test_names_that_no_file_system_likes_do_not_break_the_grader(tmp_path, name):
    submission = read_submission(zipped(tmp_path / "s.zip", {name: "x", **PACKAGE}), MODULES)
    submission.write(tmp_path / "package")
    assert FILES.items() <= submission.files.items()


def test_links_in_a_zip_are_left_out(tmp_path):
    def link(entry):
        if entry.filename == "data.py":
            entry.create_system, entry.external_attr = 3, (stat.S_IFLNK | 0o777) << 16

    notes = the_notes_of(zipped(tmp_path / "s.zip", {"data.py": "/etc/shadow", **PACKAGE}, link))
    assert notes == ("data.py is a link, and was left out.",)


def test_a_zip_bomb_is_cut(tmp_path):
    path = tmp_path / "s.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("data.py", "w") as file:
            for _ in range(64):
                file.write(bytes(1 << 20))
        for name, content in PACKAGE.items():
            archive.writestr(name, content)
    data = path.read_bytes()
    tracemalloc.start()
    assert the_notes_of(path) == ("data.py is larger than 1 MiB, and was left out.",)
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()
    # It may also lie about its size.
    path.write_bytes(data.replace(struct.pack("<I", 64 << 20), struct.pack("<I", 100)))
    submission = read_submission(path, MODULES)
    assert "data.py" not in submission.files or len(submission.files["data.py"]) <= 100


def test_an_encrypted_file_is_left_out(tmp_path):
    path = zipped(tmp_path / "s.zip", {"data.py": "x", **PACKAGE})
    data = bytearray(path.read_bytes())
    for signature, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        data[data.index(signature) + flags] |= 1
    path.write_bytes(data)
    assert the_notes_of(path) == ("data.py is damaged or encrypted in the zip, and was left out.",)


def test_a_damaged_file_is_left_out(tmp_path):
    content = random.Random(0).randbytes(5000)
    path = zipped(tmp_path / "s.zip", {"data.py": content, **PACKAGE})
    data = bytearray(path.read_bytes())
    data[2000] ^= 1
    path.write_bytes(data)
    assert the_notes_of(path) == ("data.py is damaged or encrypted in the zip, and was left out.",)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_compression_whose_output_cannot_be_bounded_is_not_undone(tmp_path, method):
    """Python's zip files undo 4 KiB of these at a time, whole: 200 bytes became 100 MiB, whatever size was asked for."""
    with zipfile.ZipFile(tmp_path / "s.zip", "w") as archive:
        archive.writestr("data.py", bytes(32 << 20), method)
        for name, content in PACKAGE.items():
            archive.writestr(name, content)
    tracemalloc.start()
    assert the_notes_of(tmp_path / "s.zip") == (
        "data.py is compressed in a way that few programs read, and was left out.",
    )
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("error", [lzma.LZMAError, MemoryError, struct.error, EOFError])
def test_whatever_a_decompressor_raises_a_file_is_left_out(tmp_path, monkeypatch, error):
    def fail(self, n=-1):
        raise error

    monkeypatch.setattr(zipfile.ZipExtFile, "read", fail)
    submission = read_submission(zipped(tmp_path / "s.zip", PACKAGE), MODULES)
    assert submission.files == {} and len(submission.notes) == 2


@pytest.mark.parametrize("content", [b"#" * ((1 << 20) + 1), None], ids=["too large", "damaged"])
def test_what_is_left_out_counts_as_read(tmp_path, monkeypatch, content):
    """3,000 files that were each read up to 1 MiB and dropped kept the grader busy for half a minute."""
    files = {f"x{i:04}.py": content or bytes(1000) for i in range(1500)}
    path = zipped(tmp_path / "s.zip", {"memory.py": "m", **files})
    if content is None:
        data = path.read_bytes()
        with zipfile.ZipFile(path) as archive:
            crc = struct.pack("<I", archive.getinfo("x0000.py").CRC)
        path.write_bytes(data.replace(crc, b"\1\2\3\4"))
    opened = []
    real = zipfile.ZipFile.open
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda self, entry: opened.append(entry) or real(self, entry))
    submission = read_submission(path, MODULES)
    assert submission.files == {"memory.py": b"m"}
    assert len(opened) <= (500 if content is None else 20)
    assert len(submission.notes) <= 30 and any("files were read" in note for note in submission.notes)


def test_notes_are_bounded(read):
    submission = read({f"{i}/memory.py": "m" for i in range(300)})
    assert len(submission.notes) <= 30
    assert any("more" in note for note in submission.notes)


def test_an_unknown_compression_is_left_out(tmp_path):
    path = zipped(tmp_path / "s.zip", {"data.py": "x", **PACKAGE})
    data = bytearray(path.read_bytes())
    for signature, method in ((b"PK\3\4", 8), (b"PK\1\2", 10)):
        at = data.index(signature) + method
        data[at : at + 2] = struct.pack("<H", 97)
    path.write_bytes(data)
    assert the_notes_of(path) == ("data.py is compressed in a way that few programs read, and was left out.",)


def test_every_cut_of_a_zip_is_refused_or_read(tmp_path):
    whole = zipped(tmp_path / "s.zip", PACKAGE).read_bytes()
    for length in range(len(whole)):
        (tmp_path / "cut.zip").write_bytes(whole[:length])
        with pytest.raises(UnreadableSubmission, match="neither a folder nor a zip"):
            read_submission(tmp_path / "cut.zip", MODULES)


def test_no_flipped_byte_of_a_zip_breaks_the_grader(tmp_path):
    whole = zipped(tmp_path / "s.zip", {"student/memory.py": "m = 1\n" * 20, "student/optimizers.py": "o"}).read_bytes()
    draw = random.Random(0)
    for i in range(1500):
        data = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        (tmp_path / "flipped.zip").write_bytes(data)
        try:
            submission = read_submission(tmp_path / "flipped.zip", MODULES)
        except UnreadableSubmission:
            continue
        submission.write(tmp_path / f"{i}")


def test_an_empty_zip_is_an_empty_submission(tmp_path):
    assert read_submission(zipped(tmp_path / "s.zip", {}), MODULES) == Submission({}, "", ())


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\3\4", b"\x1f\x8b\x08", b"PK\5\6" + bytes(18) + b"x"])
def test_what_is_no_zip_is_refused(tmp_path, content):
    (tmp_path / "s.zip").write_bytes(content)
    if content.startswith(b"PK\5\6"):  # an empty zip with something behind it
        return
    with pytest.raises(UnreadableSubmission, match=r"s\.zip is neither a folder nor a zip"):
        read_submission(tmp_path / "s.zip", MODULES)


def test_a_zip_in_a_self_extracting_program_is_a_zip(tmp_path):
    path = zipped(tmp_path / "s.zip", PACKAGE)
    path.write_bytes(b"#!/bin/sh\nexit\n" + path.read_bytes())
    assert read_submission(path, MODULES).files == FILES


@pytest.mark.parametrize("path", ["nowhere", "nowhere/at all", "/dev/null", "/dev/zero", "x" * 300, "x/" * 3000])
def test_a_path_without_a_submission_is_refused(tmp_path, path):
    with pytest.raises(UnreadableSubmission):
        read_submission(tmp_path / path, MODULES)


def test_a_zip_of_many_entries_is_read_quickly(tmp_path):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in PACKAGE.items():
            archive.writestr(name, content)
        for i in range(30_000):
            archive.writestr(f"images/{i}", b"")
    (tmp_path / "s.zip").write_bytes(buffer.getvalue())
    start = time.monotonic()
    assert the_notes_of(tmp_path / "s.zip") == ()
    assert time.monotonic() - start < 10


# End to end: what comes along with the package never runs, and shadows nothing

FOREIGN = {
    name: f"raise SystemExit('{name} was run')\n"
    for name in (
        "conftest.py", "sitecustomize.py", "usercustomize.py", "torch.py", "numpy.py", "einops.py", "random.py", "typing.py",
        "pytest.py", "autograder.py", "reference.py", "cloudpickle.py", "msgspec.py", "tests/conftest.py", "tests/__init__.py",
        "torch/__init__.py", "autograder/__init__.py", "setup.py", "test_memory.py",
    )
}  # fmt: skip
FOREIGN |= {
    "pytest.ini": "[pytest]\naddopts = --fail\n",
    "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '--fail'\n",
}
GOOD = {f"{part}.py": reference(part) for part in ("memory", "optimizers")}


def outcomes(grade, part):
    return {row["outcome"] for row in grade["rows"] if row["problem"].startswith(part)}


@pytest.mark.parametrize("folder", ["", "student/", "repo/student/"])
def test_nothing_else_of_a_submission_is_loaded(grader, tmp_path, folder):
    files = {folder + name: content for name, content in (FOREIGN | GOOD).items()} | FOREIGN
    if not folder:
        files |= GOOD
    grade = grader.grade(write(tmp_path, files))
    assert outcomes(grade, "memory.") == outcomes(grade, "optimizers.") == {"passed"}, [
        r for r in grade["rows"] if r["output"]
    ]


def test_modules_may_be_split_into_more_files(grader, tmp_path):
    files = {
        "student/memory.py": "from .extra.sizes import *\nfrom student.common import get_memory_usage\n",
        "student/extra/sizes.py": reference("memory").replace("def get_memory_usage", "def other"),
        "student/common.py": "def get_memory_usage(x):\n    return x.numel() * x.element_size()\n",
    }
    files["student/memory.py"] = files["student/memory.py"].replace(
        "import *",
        "import (MemoryBreakdown, deep_linear_training_bytes, saved_activation_bytes, storage_bytes, training_memory)",
    )
    grade = grader.grade(write(tmp_path, files))
    assert outcomes(grade, "memory.") == {"passed"}, [row["output"] for row in grade["rows"] if row["output"]]


def test_a_folder_called_like_a_module_does_not_hide_it(grader, tmp_path):
    """As in Python, where a module goes before a folder without __init__.py."""
    files = GOOD | {"memory/plot.py": "x = 1", "optimizers/notes/a.py": "x = 1"}
    grade = grader.grade(write(tmp_path, files))
    assert outcomes(grade, "memory.") == outcomes(grade, "optimizers.") == {"passed"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda source: b"\xef\xbb\xbf" + source.encode(), ()),
        (lambda source: source.replace("\n", "\r\n").encode(), ()),
        (lambda source: source.replace("\n", "\r").encode(), ()),
        (lambda source: source.rstrip("\n").encode(), ()),
        (lambda source: ("# é – 日本語\n" + source).encode(), ()),
        (lambda source: "# coding: latin-1\n# é\n".encode("latin-1") + source.encode("latin-1", "replace"), ()),
        (lambda source: source.encode() + b"x = '\xe9'\n", ("could not be imported", "SyntaxError")),
        (lambda source: source.encode("utf-16"), ("could not be imported", "NUL", "UTF-8")),
        (lambda source: source.encode() + b"\0", ("could not be imported", "NUL", "UTF-8")),
        (lambda source: b"", ("does not define",)),
        (lambda source: b"\x7fELF\1\2\3", ("could not be imported",)),
        (lambda source: b"(" * 10_000, ("memory.py",)),
        (lambda source: b"x = " + b"-" * 100_000 + b"1", ("memory.py",)),
    ],
    ids=["BOM", "CRLF", "CR", "no end of line", "UTF-8", "latin-1", "wrong UTF-8", "UTF-16", "NUL", "empty", "binary", "brackets", "minuses"],
)  # fmt: skip
def test_files_in_other_encodings(grader, tmp_path, change, words):
    files = GOOD | {"memory.py": change(reference("memory"))}
    grade = grader.grade(write(tmp_path, files))
    assert outcomes(grade, "optimizers.") == {"passed"}
    assert outcomes(grade, "memory.") == ({"failed"} if words else {"passed"})
    for row in grade["rows"]:
        if row["problem"].startswith("memory."):
            assert all(word in row["output"] for word in words), row["output"]


def test_a_part_handed_in_as_a_package_is_explained(grader, tmp_path):
    grade = grader.grade(
        write(tmp_path, {"student/memory/__init__.py": reference("memory"), "student/napkin.py": "x = 1"})
    )
    told = {row["output"] for row in grade["rows"] if row["problem"].startswith("memory.")}
    assert told == {"memory.py was not found in student/, but memory/__init__.py was: hand in one file, memory.py."}


def test_another_spelling_of_a_files_name_is_shown(grader, tmp_path):
    grade = grader.grade(
        write(tmp_path, {"student/Memory.py": reference("memory"), "student/optimizers.py": reference("optimizers")})
    )
    told = {row["output"] for row in grade["rows"] if row["problem"].startswith("memory.")}
    assert len(told) == 1 and "memory.py was not found in student/, but Memory.py was: call it memory.py." in told.pop()


def test_an_empty_submission_gets_no_point_and_is_told(grader, tmp_path):
    grade = grader.grade(tmp_path)
    assert {row["outcome"] for row in grade["rows"]} == {"failed"}
    assert all("was not found. Found: no Python file" in row["output"] for row in grade["rows"])


def test_a_link_to_the_reference_is_no_solution(grader, tmp_path):
    (tmp_path / "memory.py").symlink_to(
        Path(sys.modules["autograder"].__file__ or "").parents[1] / "reference" / "memory.py"
    )
    grade = grader.grade(tmp_path)
    assert {row["outcome"] for row in grade["rows"]} == {"failed"}
    assert any("memory.py is a link" in note for note in grade["notes"])
