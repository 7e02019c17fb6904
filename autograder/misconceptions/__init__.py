"""Known-wrong solutions, by part: each loses the rows it should, and explains them to the student who wrote it."""
