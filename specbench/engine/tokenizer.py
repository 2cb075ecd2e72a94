"""The model's tokenizer, with its chat template where it has one."""

from pathlib import Path
from typing import TYPE_CHECKING

from specbench.engine.hub import CODE_FILES, TOKENIZER_FILES, download
from specbench.engine.source import Source, locate
from specbench.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_tokenizer(
    spec: str, revision: str | None = None, trust_remote_code: bool = False
) -> "PreTrainedTokenizerBase | None":
    """The tokenizer of a model named as for `--model`.

    Parameters
    ----------
    spec, revision
        As for `specbench.engine.source.locate`.
    trust_remote_code : bool
        Run code that comes with the tokenizer's files.

    Returns
    -------
    PreTrainedTokenizerBase or None
        `None` only for random weights whose shape comes without tokenizer files.

    Raises
    ------
    DataError
        Tokenizer files that are missing or cannot be read.
    """
    return tokenizer_of(locate(spec, revision), trust_remote_code)


def tokenizer_of(
    source: Source, trust_remote_code: bool = False
) -> "PreTrainedTokenizerBase | None":
    """As `load_tokenizer`, for a model already located."""
    if source.path is None:
        return None
    if source.kind == "gguf":
        return _from_gguf(source.path)
    folder = source.path
    if source.hub_id is not None:
        files = TOKENIZER_FILES + (CODE_FILES if trust_remote_code else ())
        folder, _ = download(source.hub_id, source.revision, files)
    if not any(
        (folder / file).is_file() for file in ("tokenizer.json", "tokenizer.model", "vocab.json")
    ):
        if source.kind == "dummy":
            return None
        raise DataError(f"{source.label} has no tokenizer files (tokenizer.json or the like)")
    return _load(folder, source.label, trust_remote_code=trust_remote_code)


def _load(
    folder: Path, label: str, gguf_file: str | None = None, trust_remote_code: bool = False
) -> "PreTrainedTokenizerBase":
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    try:
        if gguf_file is not None:
            # AutoTokenizer would parse the whole file for its configuration, at 4 s for SmolLM2.
            return PreTrainedTokenizerFast.from_pretrained(
                folder, gguf_file=gguf_file, local_files_only=True
            )
        return AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=trust_remote_code
        )
    # The tokenizers library raises bare Exception for files that it cannot read, or it panics,
    # which is no Exception and has no class that could be named here.
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        if "trust_remote_code" in str(error):
            raise DataError(
                f"the tokenizer of {label} needs code that comes with it, which is not run; "
                "--trust-remote-code allows it"
            ) from error
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:500]
        raise DataError(f"cannot read the tokenizer of {label}: {reason}") from error


def _from_gguf(path: Path) -> "PreTrainedTokenizerBase":
    from tokenizers import normalizers, pre_tokenizers

    from specbench.engine.gguf_file import open_gguf, value_of

    kind = value_of(open_gguf(path), "tokenizer.ggml.pre")
    tokenizer = _load(path.parent, path.name, path.name)
    backend = tokenizer.backend_tokenizer
    # What transformers leaves out of the splitting rules that the file names.
    if kind == "smollm":
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    elif kind == "qwen2":
        backend.normalizer = normalizers.NFC()
    elif kind == "llama-bpe":
        backend.model.ignore_merges = True
    return tokenizer
