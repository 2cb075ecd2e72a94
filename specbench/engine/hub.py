"""Files of a model on the Hugging Face hub, in the hub library's own cache."""

from pathlib import Path

from specbench.errors import DataError

CONFIG_FILES = ("config.json", "generation_config.json", "model.safetensors.index.json")
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)


# Fetched, and run, with --trust-remote-code alone.
CODE_FILES = ("*.py",)


def download(hub_id: str, revision: str | None, files: tuple[str, ...]) -> tuple[Path, str]:
    """Fetch those of `files` that the repository has.

    Parameters
    ----------
    hub_id : str
        ``owner/name``.
    revision : str, optional
        Branch, tag or commit; `None` is the default branch.
    files : tuple of str
        Names at the top of the repository.

    Returns
    -------
    folder : Path
        Snapshot folder.
    commit : str
        The commit that `revision` stood for.

    Raises
    ------
    DataError
        The hub cannot be reached and the cache lacks the files, or there is no such repository or
        revision, or it is gated; the message says how to go on.
    """
    from huggingface_hub import errors, snapshot_download

    at = f"{hub_id}@{revision}" if revision else hub_id
    otherwise = "or give a local folder or a .gguf file as --model"
    try:
        folder = Path(snapshot_download(hub_id, revision=revision, allow_patterns=list(files)))
    except errors.GatedRepoError as error:
        raise DataError(
            f"{hub_id} is gated: accept its licence on the hub and log in with `hf auth login` "
            f"(or set HF_TOKEN), {otherwise}"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise DataError(f"{hub_id} has no revision {revision!r} on the hub") from error
    except errors.RepositoryNotFoundError as error:
        raise DataError(
            f"the hub has no model {hub_id!r} that you may read, and there is no folder of that "
            f"name: check the spelling, log in with `hf auth login` if it is private, {otherwise}"
        ) from error
    except errors.HFValidationError as error:
        raise DataError(f"{hub_id!r} is no valid hub id: {error}") from error
    except (OSError, errors.HTTPError) as error:  # type: ignore[attr-defined]
        raise DataError(
            f"cannot get {at} from the hub, and it is not in the local cache "
            f"({_first_line(error)}): check the connection, unset HF_HUB_OFFLINE if it is set, "
            f"{otherwise}"
        ) from error
    return folder, folder.name


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
