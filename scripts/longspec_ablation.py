"""Two trainings compared on held-out text: loss against steps, and how many steps one saves.

python scripts/longspec_ablation.py runs/with runs/without --place long --output ablation
"""

import argparse
import csv
import io
import math
from pathlib import Path

from specbench.files import write_atomically
from specbench.train.curves import read_curve


def main(argv: list[str] | None = None) -> None:
    """Write `ablation.csv`, `ablation.png` and `ratio.csv`, and print the ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs=2, metavar="TRAINING")
    parser.add_argument("--place", default="long", choices=("near", "far", "long"))
    parser.add_argument(
        "--after", type=int, default=0, help="count from this step on: those of the short stage"
    )
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args(argv)
    curves = {
        folder.name: losses(folder, options.place, options.after) for folder in options.folders
    }
    ratio = steps_ratio(*curves.values())
    options.output.mkdir(parents=True, exist_ok=True)
    points = [
        (name, options.place, step, f"{loss:.6g}")
        for name, curve in curves.items()
        for step, loss in curve
    ]
    first, second = curves
    found = first, second, options.place, options.after, "" if ratio is None else f"{ratio:.4g}"
    tables: dict[str, list[tuple[object, ...]]] = {
        "ablation": [("training", "place", "step", "loss"), *points],
        "ratio": [("training", "over", "place", "after", "steps_ratio"), found],
    }
    for name, rows in tables.items():
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        write_atomically(options.output / f"{name}.csv", text.getvalue().encode())
    write_atomically(options.output / "ablation.png", draw(curves, options.place))
    shown = "never" if ratio is None else f"{ratio:.2f} times fewer steps"
    print(f"{first} reaches the last loss of {second} at the place {options.place} in: {shown}")


def losses(folder: Path, place: str, after: int = 0) -> list[tuple[int, float]]:
    """Steps taken since step `after` and the held-out loss then, the mean over the lags."""
    found: dict[int, list[float]] = {}
    for row in read_curve(folder / "eval.csv"):
        if row["place"] == place:
            found.setdefault(int(row["step"]) + 1, []).append(float(row["loss"]))
    if not found:
        raise SystemExit(f"{folder} has no evaluation at the place {place!r}")
    return [
        (step - after, sum(values) / len(values)) for step, values in found.items() if step >= after
    ]


def steps_ratio(first: list[tuple[int, float]], second: list[tuple[int, float]]) -> float | None:
    """Steps of `second` to its lowest loss, over those of `first` to the same.

    None: it never gets there; infinity: it begins there.

    Between two evaluations the loss is taken as linear.
    """
    steps, wanted = min(second, key=lambda point: point[1])
    before: tuple[int, float] | None = None
    for step, loss in first:
        if loss <= wanted:
            if before is None:
                return steps / step if step else math.inf
            share = (before[1] - wanted) / (before[1] - loss)
            return steps / (before[0] + share * (step - before[0]))
        before = step, loss
    return None


def draw(curves: dict[str, list[tuple[int, float]]], place: str) -> bytes:
    """The PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    from specbench.results.plots.style import COLOURS, MARKERS

    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for number, (name, curve) in enumerate(curves.items()):
        axes.plot(
            *zip(*curve, strict=True), color=COLOURS[number], marker=MARKERS[number], label=name
        )
    axes.set(
        xlabel="optimizer step",
        ylabel="cross-entropy (nats a token)",
        title=f"Held-out loss of a LongSpec draft, place: {place}",
    )
    axes.grid(alpha=0.3)
    axes.legend()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    pyplot.close(figure)
    return buffer.getvalue()


if __name__ == "__main__":
    main()
