"""The public tests: the handout's examples, run on `student/` in this process."""
