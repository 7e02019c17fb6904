"""The hidden suites: what Gradescope runs."""
