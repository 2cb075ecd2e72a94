"""The curves of a training: CSV files that a resumed part continues, and a plot."""

import csv
import io
import math
import re
from collections.abc import Sequence
from pathlib import Path

from specbench.errors import DataError
from specbench.files import disk_errors, write_atomically
from specbench.results.plain import one_line

LOSS = ("step", "stage", "tokens", "lr", "lag", "loss", "accuracy", "grad_norm", "seconds")
_STEP = re.compile(r"[0-9]{1,12}")
_NUMBERS = ("loss", "lag", "accuracy")
EVALUATION = ("step", "place", "lag", "loss", "accuracy")


class Curve:
    """A CSV file whose first column is the step.

    Parameters
    ----------
    file : Path
    columns : sequence of str
    step : int
        Rows of this step and later ones are dropped: they were written after the checkpoint from
        which the training goes on.
    """

    def __init__(self, file: Path, columns: Sequence[str], step: int) -> None:
        self.file, self.columns = file, tuple(columns)
        rows = [row for row in read_curve(file) if int(row["step"]) < step] if step else []
        if any(row.keys() != {*self.columns} for row in rows):
            raise DataError(f"{file} has other columns than {', '.join(self.columns)}")
        text = io.StringIO()
        writer = csv.DictWriter(text, self.columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_atomically(file, text.getvalue().encode())

    def append(self, *values: object) -> None:
        """Add a row, on disk at once."""
        shown = [f"{value:.6g}" if isinstance(value, float) else str(value) for value in values]
        with disk_errors(self.file), self.file.open("a", encoding="utf-8") as opened:
            opened.write(",".join(shown) + "\n")


def read_curve(file: Path) -> list[dict[str, str]]:
    """The rows of a curve; a last line that was cut off by a crash is left out.

    Raises
    ------
    DataError
        It is no curve of a training; the message names the line.
    """
    if not file.is_file():
        return []
    try:
        text = file.read_text(encoding="utf-8")
        lines = list(csv.reader(io.StringIO(text[: text.rfind("\n") + 1], newline="")))
    except (ValueError, csv.Error) as error:
        raise DataError(f"{file} is no curve of a training: {error}") from error
    if lines and "step" not in lines[0]:
        raise DataError(f"{file} is no curve of a training: it has no column 'step'")
    rows = []
    for number, line in enumerate(lines[1:], start=2):
        row = dict(zip(lines[0], line, strict=False))
        numbers = all(_is_number(row.get(name)) for name in _NUMBERS)
        if len(line) != len(lines[0]) or not numbers or not _STEP.fullmatch(row["step"]):
            raise DataError(f"{file} line {number} is no row of a training's curve")
        rows.append(row)
    return rows


def _is_number(text: str | None) -> bool:
    """Whether a field is a number; a loss may be NaN, and a curve need not have every column."""
    if text is None:
        return True
    try:
        return float(text) > -math.inf or math.isnan(float(text))
    except ValueError:
        return False


def draw_curves(folder: Path, title: str) -> bytes:
    """A PNG of the training loss and of the evaluations at each place, the lags' mean."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    from specbench.results.plots.style import COLOURS, MARKERS

    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    loss = read_curve(folder / "loss.csv")
    steps, values = [int(row["step"]) for row in loss], [float(row["loss"]) for row in loss]
    axes.plot(steps, values, color="0.75", linewidth=0.8, label="training, each step")
    axes.plot(steps, _smooth(values), color="black", linewidth=1.2, label="training, smoothed")
    places: dict[str, dict[int, list[float]]] = {}
    for row in read_curve(folder / "eval.csv"):
        at = places.setdefault(row["place"], {})
        at.setdefault(int(row["step"]), []).append(float(row["loss"]))
    for number, (place, curve) in enumerate(places.items()):
        means = [sum(found) / len(found) for found in curve.values()]
        axes.plot(
            list(curve),
            means,
            color=COLOURS[number],
            marker=MARKERS[number],
            label=f"held out, {place}",
        )
    axes.set(xlabel="optimizer step", ylabel="cross-entropy (nats a token)")
    axes.set_title(one_line(title), parse_math=False)
    axes.grid(alpha=0.3)
    axes.legend()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    pyplot.close(figure)
    return buffer.getvalue()


def _smooth(values: list[float], weight: float = 0.9) -> list[float]:
    smoothed: list[float] = []
    for value in values:
        last = smoothed[-1] if smoothed else value
        smoothed.append(weight * last + (1 - weight) * value)
    return smoothed
