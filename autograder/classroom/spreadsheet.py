"""Text in a CSV file that a spreadsheet opens: a cell that begins with one of a few signs is taken for a formula and computed."""

_FORMULA = ("=", "+", "-", "@")


def shielded(text: str) -> str:
    """Return a text as it stands in a cell: in one line, and nothing that is computed."""
    text = " ".join(text.split())
    return f"'{text}" if text.startswith(_FORMULA) else text


def unshielded(cell: str) -> str:
    """Return the text that a cell stands for."""
    return cell[1:] if cell.startswith("'") and cell[1:].startswith(_FORMULA) else cell
