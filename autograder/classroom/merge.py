"""The rows that were graded on a GPU beside those of the CPU, by submission, in a folder of their own. Neither run is touched."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from autograder.classroom.record import Record, save
from handout.problems import Assignment


def merged(
    cpu: Mapping[str, Record], cuda: Mapping[str, Record], assignment: Assignment
) -> tuple[dict[str, Record], list[str]]:
    """Return the CPU's records with the bonus rows of the GPU's, and a line for each submission that has none.

    A bonus row counts only if the same files were graded in both runs.
    """
    bonus = {problem.id for problem in assignment.problems if problem.bonus}
    records, lines = {}, []
    for id, record in cpu.items():
        other = cuda.get(id)
        if not record.final:
            lines.append(f"{id} has no grade of the CPU: {record.status}")
        elif other is None or not other.final:
            lines.append(f"{id} has no bonus: {'no results of the GPU' if other is None else other.status}")
        elif other.digest != record.digest:
            lines.append(f"{id} has no bonus: the two runs graded different files")
        else:
            rows = tuple(row for row in other.grade.rows if row.problem in bonus)
            kept = tuple(row for row in record.grade.rows if row.problem not in bonus)
            record = replace(record, grade=replace(record.grade, rows=(*kept, *rows)))
        records[id] = record
    lines += [f"{id} is left out: it has no results of the CPU" for id in cuda.keys() - cpu.keys()]
    return records, lines


def problems_of(records: Mapping[str, Record], assignment: Assignment) -> Sequence[str]:
    """Return the problems that have rows in any record, in the order of the handout."""
    there = {row.problem for record in records.values() for row in record.grade.rows}
    return [problem.id for problem in assignment.problems if problem.id in there]


def write(records: Mapping[str, Record], folder: Path) -> None:
    """Write the records into a run's folder."""
    for record in records.values():
        save(record, folder)
