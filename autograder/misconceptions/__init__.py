"""The place for known-wrong solutions that explain themselves to the student who wrote them; there are none yet."""
