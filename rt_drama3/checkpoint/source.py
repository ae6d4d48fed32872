"""Resolves a model name to its folder: the embedded voice, a local folder or a hub download."""

from __future__ import annotations

import contextlib
import logging
import queue
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from huggingface_hub import constants, get_session, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

from rt_drama3.checkpoint.files import (
    CODEC,
    CODEC_CONFIG,
    CONFIG,
    INDEX,
    SINGLE,
    TOKENIZER,
    VOICE,
    read_json,
)
from rt_drama3.errors import CheckpointError, ConfigError

log = logging.getLogger(__name__)

NANO = "nano"
_NANO_FOLDER = Path(__file__).parents[1] / "voices" / "nano"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_HUB_SECONDS = 0.8  # for the hub to name the newest commit of a checkpoint that is cached
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_SMALL_FILES = (
    CONFIG,
    CODEC_CONFIG,
    VOICE,
    TOKENIZER,
    CODEC,
    INDEX,
    "LICENSE*",
    "README.md",
)

# The hub's client has changed its HTTP library before; a lost connection raises the base class of
# its own error.
_NETWORK_ERRORS: tuple[type[BaseException], ...] = (OSError, HfHubHTTPError.__bases__[0])


def resolve(name_or_path: str, revision: str | None = None) -> Path:
    """Returns the folder of a checkpoint, and downloads it first if necessary.

    Args:
        name_or_path: "nano", a folder, or a hub id such as "fishaudio/drama-3". A folder that
            exists takes precedence over a hub id of the same name.
        revision: branch, tag or commit of a hub id; None is the newest.

    Raises:
        CheckpointError: the folder does not exist, or the download failed.
        ConfigError: a revision was given for something other than a hub id.
    """
    path = Path(name_or_path).expanduser()
    local = name_or_path == NANO or path.exists()
    if local and revision is not None:
        raise ConfigError(
            f"revision {revision!r} was given, but {name_or_path} is not a hub id; omit it."
        )
    if name_or_path == NANO:
        return _NANO_FOLDER
    if path.is_dir():
        return path
    if path.exists():
        raise CheckpointError(f"{path} is a file; give the folder that holds the checkpoint.")
    if not _HUB_ID.fullmatch(name_or_path):
        raise CheckpointError(
            f"{name_or_path!r} is neither {NANO!r}, nor a folder that exists, nor a hub id such as "
            "fishaudio/drama-3."
        )
    return _download(name_or_path, revision)


def _download(name: str, revision: str | None) -> Path:
    """Returns the cached folder if it is the newest, as far as the hub answers; or downloads.

    A download begins with the small files, since the index names the shards; both from one commit.
    """
    cached = _cached(name, revision)
    if cached is not None:
        if constants.HF_HUB_OFFLINE or _COMMIT.fullmatch(revision or ""):
            return cached
        newest = _newest_commit(name, revision or constants.DEFAULT_REVISION)
        if newest == cached.name:
            return cached
        if newest is None:
            log.warning("the hub does not answer; using the cached commit %s", cached.name)
            return cached
    folder = _snapshot(name, revision, _SMALL_FILES)
    # A snapshot's folder is named by its commit.
    return _snapshot(name, folder.name, _shards(folder, name))


def _shards(folder: Path, name: str) -> list[str]:
    if not (folder / INDEX).is_file():
        return [SINGLE]
    index = read_json(folder / INDEX)
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(
            f"{folder / INDEX} has no weight_map; is {name} a Drama 3 checkpoint?"
        )
    return sorted({str(shard) for shard in weight_map.values()})


def _cached(name: str, revision: str | None) -> Path | None:
    """Returns the folder of a complete snapshot in the hub's cache, or None; needs no network."""
    config = try_to_load_from_cache(name, CONFIG, revision=revision)
    if not isinstance(config, str):
        return None
    folder = Path(config).parent
    needed = [TOKENIZER, CODEC, *_shards(folder, name)]  # shards come last, see _download
    if all((folder / file).is_file() for file in needed):
        return folder
    return None


def _newest_commit(name: str, revision: str) -> str | None:
    """Asks the hub once for the commit of a branch or tag.

    The hub's own client retries for half a minute, and looking up a host name has no timeout.

    Returns:
        The commit, "" if the hub refuses the request, or None if it does not answer in time.
    """
    answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    url = f"{constants.ENDPOINT}/api/models/{name}/revision/{quote(revision, safe='')}"

    def ask() -> None:
        commit: str | None = None
        with contextlib.suppress(*_NETWORK_ERRORS, ValueError):
            answer = get_session().get(url, headers=build_hf_headers(), timeout=_HUB_SECONDS)
            if answer.status_code < 500:
                found = answer.json() if answer.status_code == 200 else {}
                commit = str(found.get("sha", "")) if isinstance(found, dict) else ""
        answers.put(commit)

    threading.Thread(target=ask, name="rt-drama3-hub", daemon=True).start()
    with contextlib.suppress(queue.Empty):
        return answers.get(timeout=_HUB_SECONDS)
    return None


def _snapshot(name: str, revision: str | None, patterns: Sequence[str]) -> Path:
    where = name if revision is None else f"{name} at {revision}"
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(patterns)))
    except HFValidationError as error:
        raise CheckpointError(f"{name!r} is not a valid hub id: {error}") from error
    except GatedRepoError as error:
        raise CheckpointError(
            f"{where} is gated: accept its licence at https://huggingface.co/{name}, then log in "
            "with 'hf auth login' (or set HF_TOKEN)."
        ) from error
    except RevisionNotFoundError as error:
        raise CheckpointError(
            f"{name} has no revision {revision!r}; check its spelling."
        ) from error
    except RepositoryNotFoundError as error:
        raise CheckpointError(
            f"{name} is neither a folder here nor {where} on the hub, unless it is private: check "
            "the spelling, or log in with 'hf auth login'."
        ) from error
    except LocalEntryNotFoundError as error:
        raise CheckpointError(
            f"{where} is not a folder here, not in the local cache, and the hub cannot be reached "
            "(no connection, or HF_HUB_OFFLINE is set). Connect once to download it, give a folder "
            f"that holds it, or use the embedded model {NANO!r}."
        ) from error
    except _NETWORK_ERRORS as error:
        raise CheckpointError(
            f"The download of {where} failed: {error}. Check the connection and disk space, then "
            "try again: it resumes where it stopped."
        ) from error
