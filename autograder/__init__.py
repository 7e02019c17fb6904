"""Everything that grades: private."""
