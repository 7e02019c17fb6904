"""What to do about the errors that everybody meets: a sentence for each of PyTorch's common messages."""

import re
from pathlib import Path

STUDENT = Path(__file__).resolve().parent.parent / "student"

# The kind of error, what its message contains, and the sentence.
ADVICE = (
    (
        RuntimeError,
        r"leaf [Vv]ariable that requires grad is being used in an in-place",
        "autograd watches this update: do it inside `with torch.no_grad():`",
    ),
    (
        RuntimeError,
        r"does not require grad and does not have a grad_fn",
        "what backward() starts from was computed without gradients: `with torch.enable_grad():` turns them on again, "
        "for a closure that is called under no_grad too",
    ),
    (
        RuntimeError,
        r"Trying to backward through the graph a second time",
        "this graph was used up by a backward(): compute the loss anew, or detach() what comes from an earlier step",
    ),
    (
        RuntimeError,
        r"modified by an inplace operation",
        "backward() needs a value that was changed since: x = x + y makes a new tensor, x += y does not",
    ),
    (
        RuntimeError,
        r"shapes cannot be multiplied|must match the size of tensor|Expected size for .* to be",
        "print the shapes just before this line",
    ),
    (RuntimeError, r"view size is not compatible", "a view cannot do this: reshape() copies where it must"),
    (RuntimeError, r"same dtype|expected scalar type", "print the dtypes just before this line, and convert one of them"),
    (
        RuntimeError,
        r"Expected all tensors to be on the same device",
        "make new tensors where the others are: torch.zeros(..., device=x.device)",
    ),
    (RuntimeError, r"Can't call numpy\(\) on Tensor that requires grad", "detach() the tensor first"),
    (TypeError, r"'?NoneType'?", "None came where a value is needed: a return is missing, or the gradient is None"),
    (AttributeError, r"'NoneType' object", "None came where a value is needed: a return is missing, or a gradient is None"),
)  # fmt: skip


def advice(error: BaseException) -> str:
    """Return what to do about an error, or "" if nothing is known.

    >>> advice(RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)"))
    'print the shapes just before this line'
    """
    if isinstance(error, ModuleNotFoundError) and error.name and (STUDENT / f"{error.name.split('.')[0]}.py").is_file():
        return f"a file of your own is imported as student.{error.name}"
    return next(
        (text for kind, message, text in ADVICE if isinstance(error, kind) and re.search(message, str(error))), ""
    )
