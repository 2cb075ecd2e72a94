"""Python sources and documentation of a machine as training text, packages kept whole.

Each row of the JSONL files is one document: the files of a package one after another, so that a
long row of tokens is about one thing. Whole packages evaluate or train, never parts of one, and the
same file found twice counts once.

    python scripts/code_text.py text --hold-out numpy --hold-out json
    specbench train longspec --data text/train --eval-data text/eval …
"""

import argparse
import hashlib
import json
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

SUFFIXES = (".py", ".md", ".rst", ".txt")
SKIPPED = {"__pycache__", "node_modules", "_vendor", "site-packages", "dist-packages"}
# what several packages leave beside themselves, each over the others'
SHARED = {"tests", "doc", "docs"}
DOCUMENT = 256 * 1024
LARGEST_FILE = 512 * 1024
SMALLEST_FILE = 200
# about 40,000 tokens, and less than a document that goes on behind it
PROMPT = 160 * 1024
# beyond it a file is data or generated, not written
MEAN_LINE = 120


def main(argv: list[str] | None = None) -> None:
    """Write `train/*.jsonl` and `eval/*.jsonl` into a folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("output", type=Path)
    parser.add_argument("--root", type=Path, action="append", help="folder of packages")
    parser.add_argument("--hold-out", action="append", default=[], metavar="PACKAGE")
    parser.add_argument("--held-out-share", type=int, default=50, help="one package in so many")
    parser.add_argument("--megabytes", type=float, default=400, help="of training text, at most")
    parser.add_argument("--prompts", type=int, default=0, help="prompts of held-out text to write")
    options = parser.parse_args(argv)
    written = {"train": 0, "eval": 0}
    files = {}
    for side in written:
        (options.output / side).mkdir(parents=True, exist_ok=True)
        files[side] = (options.output / side / "code.jsonl").open("w", encoding="utf-8")
    known: set[bytes] = set()
    prompts: list[str] = []
    for root in options.root or roots():
        for package in sorted(packages(root)):
            held = package.stem in options.hold_out or chosen(package.stem, options.held_out_share)
            side = "eval" if held else "train"
            for document in documents(package, known):
                if side == "train" and written[side] > options.megabytes * 2**20:
                    continue
                files[side].write(json.dumps({"text": document}) + "\n")
                written[side] += len(document)
                if held and len(document) > PROMPT:
                    prompts.append(document[:PROMPT])
    for side, file in files.items():
        file.close()
        print(f"{side}: {written[side] / 2**20:.1f} MB in {file.name}")
    if options.prompts:
        # from all over the packages, each prompt cut where its text goes on
        chosen_prompts = prompts[:: max(1, len(prompts) // options.prompts)][: options.prompts]
        with (options.output / "prompts.jsonl").open("w", encoding="utf-8") as file:
            for number, prompt in enumerate(chosen_prompts):
                file.write(json.dumps({"id": f"code-{number}", "prompt": prompt}) + "\n")
        print(f"{len(chosen_prompts)} prompts of {PROMPT:,} characters in {file.name}")
    if not all(written.values()):
        sys.exit("one side has no text: name more folders with --root, or packages with --hold-out")


def roots() -> list[Path]:
    """This interpreter's library and packages, and the system's documentation."""
    found = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")]
    found += [Path("/usr/lib/python3/dist-packages"), Path("/usr/share/doc")]
    return [root for root in dict.fromkeys(found) if root.is_dir()]


def packages(root: Path) -> Iterator[Path]:
    """The packages and single modules of a folder."""
    for path in root.iterdir():
        installed = path.suffix in (".dist-info", ".egg-info", ".pth")
        left_out = path.name in SKIPPED | SHARED or path.name.startswith((".", "_"))
        if not installed and not left_out:
            yield path


def chosen(name: str, share: int) -> bool:
    """Whether a package evaluates: by its name, so that every machine agrees."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % share == 0


def documents(package: Path, known: set[bytes]) -> Iterator[str]:
    """Files of a package that were not seen before, joined up to a size."""
    parts: list[str] = []
    size = 0
    for file in sorted(sources(package)):
        text = read(file)
        if text is None:
            continue
        mark = hashlib.sha256(text.encode()).digest()
        if mark in known:
            continue
        known.add(mark)
        name = file.relative_to(package.parent)
        parts.append(f"# {name}\n{text}" if file.suffix == ".py" else text)
        size += len(text)
        if size > DOCUMENT:
            yield "\n\n".join(parts)
            parts, size = [], 0
    if parts:
        yield "\n\n".join(parts)


def sources(package: Path) -> Iterator[Path]:
    """Files of text below a package, or the single module itself."""
    for path in [package] if package.is_file() else package.rglob("*"):
        inside = path.relative_to(package.parent).parts
        if path.suffix in SUFFIXES and path.is_file() and not SKIPPED.intersection(inside[1:]):
            yield path


def read(file: Path) -> str | None:
    """A file's text; None where it is none, or looks generated."""
    try:
        if not SMALLEST_FILE <= file.stat().st_size <= LARGEST_FILE:
            return None
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    if "\0" in text or len(text) > MEAN_LINE * (text.count("\n") + 1):
        return None
    return text


if __name__ == "__main__":
    main()
