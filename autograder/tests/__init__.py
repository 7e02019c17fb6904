"""The package's own tests: of the grader, for staff."""
