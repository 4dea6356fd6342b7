"""What a loader is called where the job iterates over it: the variable in ``for batch in train_loader``."""

from __future__ import annotations

import ast
import linecache
import sys
from types import FrameType

_OURS = ("/ioprobe/instrument/", "/ioprobe/live/hooks/", "/ioprobe/watching/")
_BETWEEN = (*_OURS, "/torch/utils/data/", "/torchdata/", "/accelerate/data_loader.py", "/tqdm/")
"""What may stand between the job's loop and a loader's iterator."""


def iterated_name() -> str:
    """Return the dotted name in the statement that iterates now; '' where it cannot be told.

    Only the source line is read. Looking at the frame's variables would keep them alive.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and any(part in frame.f_code.co_filename for part in _BETWEEN):
        frame = frame.f_back
    if frame is None:
        return ""
    return name_in(linecache.getline(frame.f_code.co_filename, frame.f_lineno))


def name_in(line: str) -> str:
    """Return the name of what a line of source iterates over.

    >>> name_in("for i, (x, y) in enumerate(tqdm(train_loader)):"), name_in("it = iter(self.val_dl)")
    ('train_loader', 'self.val_dl')
    """
    text = line.strip()
    for candidate in (f"{text} pass", text, text.removeprefix("el")):
        try:
            tree = ast.parse(candidate)
        except (SyntaxError, ValueError):
            continue
        break
    else:
        return ""
    first = tree.body[0] if tree.body else None
    nodes: list[ast.AST] = []
    if isinstance(first, (ast.For, ast.AsyncFor)):
        nodes = [first.iter]
    elif isinstance(first, (ast.Assign, ast.AnnAssign, ast.Expr, ast.Return)) and first.value is not None:
        nodes = [first.value]
    names = [name for node in nodes for name in _names(node)]
    telling = [n for n in names if any(word in n.lower() for word in ("load", "data", "dl", "batch", "iter"))]
    return (telling or names or [""])[0]


def _names(node: ast.AST) -> list[str]:
    """Return the arguments of nested calls that are plain dotted names, outermost call first."""
    if isinstance(node, (ast.Name, ast.Attribute)):
        return [ast.unparse(node)]
    if isinstance(node, ast.Call):
        return [name for argument in node.args for name in _names(argument)]
    return []
