"""Your solutions, one file a part."""
