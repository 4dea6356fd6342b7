"""Lines for a terminal through rich: headings, items, tables and bars, in Unicode or ASCII, styled or plain."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ioprobe.report.words import UNMEASURED, clean

if TYPE_CHECKING:
    from rich.text import Text

PROSE_CELLS = 100
"""Longest line of running text: longer ones are hard to read, however wide the terminal."""

_EIGHTHS = " ▏▎▍▌▋▊▉"
_UNICODE_MARKS = {"-": "·", "!": "▲", "?": "?", "x": "✗", "+": "✓", "> ": "▶ ", "  < lowest": "  ◀ lowest"}
_ASCII = str.maketrans(
    {"±": "+/-", "×": "x", "–": "-", "—": "-", "…": "~", "·": "-", "−": "-", "’": "'", "≥": ">=", "≤": "<=", "µ": "u"}
)
_SEGMENTS = ("█", "▓", "▒", "░", "·")
_SEGMENTS_ASCII = ("#", "=", "+", "-", ".")


class Sheet:
    """Collects lines; everything that goes in is cleaned, so nothing in a name can steer the terminal."""

    def __init__(self, *, width: int, color: bool, unicode: bool) -> None:
        from rich.console import Console

        self.width = width
        self.color = color
        self.unicode = unicode
        self._out = io.StringIO()
        self._console = Console(
            file=self._out,
            width=width,
            height=1000,
            force_terminal=color,
            color_system="standard" if color else None,
            no_color=not color,
            legacy_windows=False,
            highlight=False,
            markup=False,
            emoji=False,
            _environ={},
        )

    def text(self) -> str:
        """Return all lines, without blanks at their ends."""
        lines = self._out.getvalue().splitlines()
        return "\n".join(line.rstrip() for line in lines).strip("\n") + "\n"

    def plain(self, text: str) -> str:
        """Return text that is safe to print, in ASCII where that was asked for."""
        text = clean(text)
        if self.unicode or text.isascii():
            return text
        return text.translate(_ASCII).encode("ascii", "backslashreplace").decode()

    def text_of(self, text: str, style: str = "") -> Text:
        """Return a piece of styled text; known marks get their Unicode form."""
        from rich.text import Text

        if self.unicode:
            for mark in ("> ", "  < lowest"):
                if text.startswith(mark):
                    text = _UNICODE_MARKS[mark] + text[len(mark) :]
        return Text(self.plain(text), style=style)

    def shortened(self, text: str, most: int) -> str:
        """Return text cut to ``most`` cells with an ellipsis."""
        from rich.cells import cell_len, set_cell_size

        text = self.plain(text)
        return text if cell_len(text) <= most else set_cell_size(text, most - 1).rstrip() + self.plain("…")

    def line(self, *pieces: str | tuple[str, str] | Text) -> None:
        """Print one line that is not wrapped."""
        from rich.text import Text

        whole = Text(no_wrap=True, overflow="ignore")
        for piece in pieces:
            if isinstance(piece, Text):
                whole.append_text(piece)
            elif isinstance(piece, tuple):
                whole.append(self.plain(piece[0]), style=piece[1])
            else:
                whole.append(self.plain(piece))
        self._console.print(whole, soft_wrap=True)

    def heading(self, title: str, note: str = "") -> None:
        """Start a section."""
        from rich.text import Text

        self._console.print()
        whole = Text(self.plain(title), style="bold underline" if self.color else "")
        if note:
            whole.append_text(Text(self.plain(f"  {note}"), style="not bold not underline dim"))
        self._console.print(whole)

    def title(self, word: str, style: str, text: str) -> None:
        """Print the word that matters most, and what it means."""
        self._hang(word, text, len(word) + 2, "bold", label_style=style)

    def paragraph(self, text: str, style: str = "") -> None:
        """Print running text, wrapped at words; nothing where there is no text."""
        if text:
            self._hang("", text, 0, style)

    def item(self, mark: str, text: str, style: str = "") -> None:
        """Print a marked item with its text hanging beside the mark."""
        self._hang(_UNICODE_MARKS.get(mark, mark) if self.unicode else mark, text, 2 if len(mark) == 1 else 3, style)

    def detail(self, label: str, text: str, style: str = "") -> None:
        """Print a labelled line that belongs to the item above."""
        self._hang(f"     {label.ljust(8)}" if label else "     ", text, 14 if label else 5, style, label_style="dim")

    def fact(self, name: str, value: str, *, whole: bool) -> None:
        """Print a name and a value; what is whole stays in one piece to be copied, such as a path."""
        if whole:
            self.line((name.ljust(10), "dim"), value)
        else:
            self._hang(name, value, 10, "", label_style="dim")

    def _hang(self, mark: str, text: str, indent: int, style: str, label_style: str | None = None) -> None:
        from rich.text import Text

        room = max(20, min(self.width, PROSE_CELLS) - indent)
        body = Text(self.plain(text), style=style)
        for number, row in enumerate(body.wrap(self._console, room)):
            head = self.plain(mark).ljust(indent) if number == 0 else " " * indent
            row.rstrip()
            line = Text.assemble((head, style if label_style is None else label_style))
            self._console.print(line.append_text(row), soft_wrap=True)

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]], right: Iterable[int] = ()) -> None:
        """Print a table; its last column wraps, the others stay whole unless they would fill the line."""
        from rich.table import Table
        from rich.text import Text

        grid = Table(
            box=None, show_header=True, header_style="dim", padding=(0, 2, 0, 0), pad_edge=False, collapse_padding=True
        )
        align = set(right)
        for i, title in enumerate(header):
            last = i == len(header) - 1 and i not in align
            grid.add_column(
                Text(self.plain(title)),
                justify="right" if i in align else "left",
                no_wrap=not last,
                overflow="fold" if last else "ellipsis" if self.unicode else "crop",
                max_width=None if last else max(12, self.width // 3),
            )
        for row in rows:
            grid.add_row(*(Text(self.plain(cell)) for cell in row))
        self._console.print(grid)
        if any(UNMEASURED in row for row in rows):
            self.line((f"{UNMEASURED} not measured", "dim"))

    def wide_table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table of figures; columns that do not fit go into further tables that begin with the first one."""
        from rich.cells import cell_len

        widths = [max(cell_len(self.plain(cell)) for cell in column) + 2 for column in zip(header, *rows, strict=True)]
        group, used = [0], widths[0]
        groups = [group]
        for i in range(1, len(header)):
            if used + widths[i] - 2 > self.width and len(group) > 1:
                group, used = [0], widths[0]
                groups.append(group)
            group.append(i)
            used += widths[i]
        for number, columns in enumerate(groups):
            if number:
                self.line()
            body = [[row[i] for i in columns] for row in rows]
            self.table([header[i] for i in columns], body, right=range(len(columns)))

    def bar(self, low: float, high: float, width: int, style: str) -> Text:
        """Return a bar: solid up to ``low``, shaded to ``high`` (fractions of its width)."""
        from rich.text import Text

        solid, end = low * width, high * width
        if not self.unicode:
            full = max(1, round(solid))
            shaded = max(0, round(end) - full)
            return Text("#" * full + "~" * shaded + " " * (width - full - shaded), style=style)
        full = int(solid)
        shaded = max(0, int(end) - full)
        if shaded <= 2:  # too narrow to show: end on an eighth of a cell instead
            middle = (solid + end) / 2
            full = int(middle)
            eighth = _EIGHTHS[int(8 * (middle - full))].strip()
            if not full and not eighth:
                eighth = _EIGHTHS[1]
            return Text(("█" * full + eighth).ljust(width)[:width], style=style)
        return Text("█" * full + "▒" * shaded + " " * (width - full - shaded), style=style)

    def stacked(self, parts: Sequence[tuple[str, float]], width: int) -> None:
        """Print one bar divided among parts (style, share); the cells sum to ``width``."""
        from rich.text import Text

        marks = _SEGMENTS if self.unicode else _SEGMENTS_ASCII
        whole, done, edge = Text(), 0, 0.0
        for number, (style, share) in enumerate(parts):
            edge += share
            cells = max(0, min(width, round(edge * width)) - done)
            done += cells
            whole.append((_SEGMENTS[0] if self.color and self.unicode else marks[number % 5]) * cells, style=style)
        self._console.print(whole, soft_wrap=True)

    def legend(self, parts: Sequence[tuple[str, str, str]]) -> None:
        """Print the key of a divided bar: (label, style, value)."""
        from rich.text import Text

        marks = _SEGMENTS if self.unicode else _SEGMENTS_ASCII
        line = Text()
        for number, (label, style, value) in enumerate(parts):
            mark = _SEGMENTS[0] if self.color and self.unicode else marks[number % 5]
            piece = Text.assemble((mark * 2, style), f" {self.plain(label)} {value}", "   ")
            if line and line.cell_len + piece.cell_len > self.width:
                self._console.print(line, soft_wrap=True)
                line = Text()
            line.append_text(piece)
        self._console.print(line, soft_wrap=True)

    def pairs(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Print names and values, in two columns where they fit."""
        from rich.cells import cell_len

        texts = [(self.plain(name), self.plain(value)) for name, value in pairs]
        names, values = (max(cell_len(text[i]) for text in texts) for i in (0, 1))
        cell = names + values + 2
        per_row = 2 if 2 * cell + 4 <= min(self.width, PROSE_CELLS) else 1
        for start in range(0, len(texts), per_row):
            row = texts[start : start + per_row]
            self.line("    ".join(f"{name.ljust(names)}  {value.ljust(values)}" for name, value in row))
