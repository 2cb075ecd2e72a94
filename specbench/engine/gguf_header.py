"""The header of a GGUF file, every number in it held against the file's size before it is used.

The layout is that of the GGUF specification, versions 2 and 3, little-endian.
"""

import mmap
import struct
from pathlib import Path

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MOST_TENSORS = 1 << 16
MOST_FIELDS = 1 << 16
MOST_VALUES = 1 << 22
"""Values of all arrays together; the largest vocabularies have a sixteenth of it."""
_STRING, _ARRAY = 8, 9
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_U32, _ALIGNMENT = 4, "general.alignment"
_MOST_DIMENSIONS = 4


def check_header(path: Path) -> None:
    """Walk through the header once, without keeping anything of it.

    Raises
    ------
    ValueError
        No GGUF file, or a count, a length or an offset that the file's size does not bear out; the
        message says which.
    OSError
        The file cannot be read.
    """
    with path.open("rb") as file:
        if path.stat().st_size < 24:
            raise ValueError("it is shorter than any header")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            _Walk(content).check()


class _Walk:
    def __init__(self, content: mmap.mmap) -> None:
        self.content = content
        self.at = 0
        self.values = 0
        self.alignment = 32

    def check(self) -> None:
        if self.content[:4] != MAGIC:
            raise ValueError("it does not begin with GGUF")
        self.at = 4
        version = self._number("<I")
        if version not in VERSIONS:
            raise ValueError(f"GGUF version {version} is not supported, only 2 and 3")
        tensors = self._count("tensors", MOST_TENSORS)
        fields = self._count("metadata fields", MOST_FIELDS)
        keys: set[str] = set()
        for _ in range(fields):
            self._field(keys)
        extents = [self._tensor() for _ in range(tensors)]
        begin = -(-self.at // self.alignment) * self.alignment
        for name, offset, size in extents:
            if begin + offset + size > len(self.content):
                raise ValueError(
                    f"the tensor {name} would end at byte {begin + offset + size:,} of "
                    f"{len(self.content):,}"
                )

    def _field(self, keys: set[str]) -> None:
        key = self._string("a metadata key")
        if key in keys:
            raise ValueError(f"the metadata key {key!r} stands twice")
        keys.add(key)
        kind = self._number("<I")
        if key == _ALIGNMENT:
            if kind != _U32:
                raise ValueError(f"{_ALIGNMENT} is no 32-bit integer")
            self.alignment = self._number("<I")
            if self.alignment.bit_count() != 1 or self.alignment > 1 << 16:
                raise ValueError(f"{_ALIGNMENT} cannot be {self.alignment}")
            return
        if kind != _ARRAY:
            self._value(kind, key)
            return
        kind, count = self._number("<I"), self._number("<Q")
        self.values += count
        if self.values > MOST_VALUES:
            raise ValueError(f"{key} has {count:,} values, more than any vocabulary")
        if kind == _STRING:
            for _ in range(count):
                self._string(key)
        elif kind in _SIZES:
            self._skip(_SIZES[kind] * count, key)
        else:
            raise ValueError(f"{key} is an array of an unknown kind, {kind}")

    def _value(self, kind: int, key: str) -> None:
        if kind == _STRING:
            self._string(key)
        elif kind in _SIZES:
            self._skip(_SIZES[kind], key)
        else:
            raise ValueError(f"{key} is of an unknown kind, {kind}")

    def _tensor(self) -> tuple[str, int, int]:
        name = self._string("a tensor's name")
        dimensions = self._number("<I")
        if not 1 <= dimensions <= _MOST_DIMENSIONS:
            raise ValueError(f"the tensor {name} has {dimensions} dimensions")
        shape = [self._number("<Q") for _ in range(dimensions)]
        kind, offset = self._number("<I"), self._number("<Q")
        try:
            block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        except (ValueError, KeyError):
            raise ValueError(f"the tensor {name} is of an unknown type, {kind}") from None
        elements = 1
        for extent in shape:
            elements *= extent
        if not elements or shape[0] % block:
            raise ValueError(f"the tensor {name} cannot have the shape {shape[::-1]}")
        if offset % self.alignment:
            raise ValueError(f"the tensor {name} begins at {offset}, which is not aligned")
        return name, offset, elements // block * size

    def _count(self, what: str, most: int) -> int:
        count: int = self._number("<Q")
        if count > most or count > len(self.content) // 8:
            raise ValueError(f"{count:,} {what} in {len(self.content):,} bytes")
        return count

    def _string(self, what: str) -> str:
        length = self._number("<Q")
        begin = self.at
        self._skip(length, what)
        try:
            return self.content[begin : self.at].decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"{what} is no UTF-8 text: {error.reason}") from error

    def _number(self, form: str) -> int:
        size = struct.calcsize(form)
        begin = self.at
        self._skip(size, "a number")
        number: int = struct.unpack_from(form, self.content, begin)[0]
        return number

    def _skip(self, size: int, what: str) -> None:
        if size > len(self.content) - self.at:
            raise ValueError(
                f"{what} at byte {self.at:,} takes {size:,} bytes, and "
                f"{len(self.content) - self.at:,} are left"
            )
        self.at += size
