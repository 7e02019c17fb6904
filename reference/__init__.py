"""Solutions, one file a part, with the same names as in `student/`."""
