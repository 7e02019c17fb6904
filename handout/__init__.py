"""The document that students read, and the list of problems and points."""
