"""Resolves a model name to a folder or file: the embedded voice, a local one, or a download."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from huggingface_hub import (
    constants,
    get_session,
    list_repo_files,
    snapshot_download,
    try_to_load_from_cache,
)
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

from rt_drama3.checkpoint import llama_cpp
from rt_drama3.checkpoint.containers import is_codec, is_loose_shard, language_model
from rt_drama3.checkpoint.files import (
    CODEC,
    CODEC_CONFIG,
    CODEC_SAFETENSORS,
    CONFIG,
    INDEX,
    SINGLE,
    TOKENIZER,
    VOICE,
    read_json,
)
from rt_drama3.checkpoint.gguf import scan_gguf
from rt_drama3.checkpoint.opened import Checkpoint
from rt_drama3.errors import CheckpointError, ConfigError

log = logging.getLogger(__name__)

NANO = "nano"
_NANO_FOLDER = Path(__file__).parents[1] / "voices" / "nano"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_HUB_SECONDS = 0.8  # for the hub to name the newest commit of a checkpoint that is cached
_WEIGHTS = (".gguf", ".safetensors")
_HUB_ID = re.compile(r"(\w[\w.-]*/\w[\w.-]*)(?::((?!.*\.\.)\w[\w./-]*\.(?:gguf|safetensors)))?")
_SMALL_FILES = (
    *(CONFIG, CODEC_CONFIG, VOICE, TOKENIZER, CODEC, f"*{CODEC_SAFETENSORS}", INDEX),
    *("LICENSE*", "LICENCE*", "NOTICE*", "README.md"),
)

# The hub's client has changed its HTTP library before; a lost connection raises the base class of
# its own error.
_NETWORK_ERRORS: tuple[type[BaseException], ...] = (OSError, HfHubHTTPError.__bases__[0])


def open_checkpoint(
    name_or_path: str | Path,
    revision: str | None = None,
    *,
    codec: str | Path | None = None,
    tensor_map: str | Path | None = None,
    head_order: str | None = None,
) -> Checkpoint:
    """Finds a checkpoint, downloads it first if necessary, and opens it.

    Args:
        name_or_path: see ``resolve``.
        revision: see ``resolve``.
        codec: folder, file or hub id of another codec; None takes that of the checkpoint.
        tensor_map: JSON file that says where tensors are, for files whose names are not known.
        head_order: "semantic-eos" or "eos-semantic": the order of a head that has only the rows
            that are sampled; None is what its container usually has.

    Raises:
        CheckpointError: something does not exist, or a download failed.
        ConfigError: a revision was given for something other than a hub id, or the order of the
            head is another one.
    """
    path = resolve(str(name_or_path), revision)
    return Checkpoint(
        path,
        codec=None if codec is None else resolve_codec(str(codec)),
        tensor_map=None if tensor_map is None else Path(tensor_map),
        head_order=head_order,
    )


def resolve(name_or_path: str, revision: str | None = None) -> Path:
    """Returns the folder or file of a checkpoint, and downloads it first if necessary.

    Args:
        name_or_path: "nano", a folder, a GGUF or safetensors file, a hub id such as
            "fishaudio/drama-3", or a hub id with a file, "Jmica/Drama-3-GGUF:NAME.gguf". What
            exists here takes precedence over a hub id of the same name.
        revision: branch, tag or commit of a hub id; None is the newest.

    Raises:
        CheckpointError: it does not exist, or the download failed.
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
    if path.is_dir() or (path.is_file() and path.suffix in _WEIGHTS):
        return path
    if path.exists():
        raise CheckpointError(
            f"{path} is a file; give the folder that holds the checkpoint, or a .gguf or "
            ".safetensors file."
        )
    match = _HUB_ID.fullmatch(name_or_path)
    if match is None:
        raise CheckpointError(
            f"{name_or_path!r} is neither {NANO!r}, nor a folder that exists, nor a hub id such as "
            "fishaudio/drama-3 (with a file: Jmica/Drama-3-GGUF:NAME.gguf)."
        )
    return _download(match[1], revision, match[2])


def resolve_codec(name_or_path: str) -> Path:
    """Returns the folder or file of a codec; of a hub id only the codec is downloaded.

    Raises:
        CheckpointError: it does not exist, or the download failed.
    """
    path = Path(name_or_path).expanduser()
    if path.exists():
        return path
    match = _HUB_ID.fullmatch(name_or_path)
    if match is None:
        raise CheckpointError(
            f"The codec {name_or_path!r} is neither a file or folder that exists, nor a hub id "
            "such as fishaudio/drama-3."
        )
    folder = _snapshot(match[1], None, [match[2] or CODEC, f"*{CODEC_SAFETENSORS}", CODEC_CONFIG])
    return folder / match[2] if match[2] else folder


def _download(name: str, revision: str | None, file: str | None) -> Path:
    """Returns the cached folder if it is the newest, as far as the hub answers; or downloads.

    A download begins with the small files, since the index names the shards; both from one commit.
    """
    cached = _cached(name, revision, file)
    if cached is not None:
        if constants.HF_HUB_OFFLINE or _COMMIT.fullmatch(revision or ""):
            return cached / (file or "")
        newest = _newest_commit(name, revision or constants.DEFAULT_REVISION)
        if newest == cached.name:
            return cached / (file or "")
        if newest is None:
            log.warning("the hub does not answer; using the cached commit %s", cached.name)
            return cached / (file or "")
    folder = _snapshot(name, revision, _SMALL_FILES)
    commit = folder.name  # a snapshot's folder is named by its commit
    folder = _snapshot(name, commit, [file] if file else _shards(folder, name))
    listed = file is not None or any((folder / part).is_file() for part in (INDEX, SINGLE))
    # What an earlier call has fetched may be one file of several.
    if not listed and not (constants.HF_HUB_OFFLINE and language_model(folder)):
        folder = _snapshot(name, commit, _chosen(name, commit))
    path = folder / (file or "")
    if not path.exists():
        files = ", ".join(_weights(name, commit)) or "none"
        raise CheckpointError(f"{name} has no file {file}. Its files with weights: {files}.")
    _fetch_projector(name, commit, path)
    return path


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


def _weights(name: str, commit: str) -> list[str]:
    """The files of a repository that hold weights."""
    with _explained(name, f"{name} at {commit}"):
        names = list_repo_files(name, revision=commit)
    return sorted(file for file in names if file.endswith(_WEIGHTS))


def _chosen(name: str, commit: str) -> list[str]:
    """The weights of a repository without an index, if there is no doubt which are meant."""
    found = [file for file in _weights(name, commit) if not is_codec(file)]
    tensors = [file for file in found if file.endswith(".safetensors")]
    texts = [file for file in found if file.endswith(".gguf") and "mmproj" not in file.lower()]
    if (tensors and all(is_loose_shard(file) for file in tensors)) or len(tensors) == 1:
        return tensors
    if not tensors and len(texts) == 1:
        return texts
    if not found:
        raise CheckpointError(f"{name} has no weights that this version can read.")
    raise CheckpointError(
        f"{name} holds several files with weights ({', '.join(found)}); give one, such as "
        f"{name}:{(texts or found)[0]}."
    )


def _fetch_projector(name: str, commit: str, path: Path) -> None:
    """Fetches the second file of llama.cpp's pair, if the first one is what was asked for."""
    files = [path] if path.is_file() else language_model(path)
    if not files or files[0].suffix != ".gguf":
        return
    if scan_gguf(files[0]).architecture != llama_cpp.ARCHITECTURE:
        return
    found = [file for file in _weights(name, commit) if "mmproj" in file.lower()]
    halves = [file for file in found if re.search(r"b?f16", file.lower())]
    if found:
        _snapshot(name, commit, (halves or found)[:1])


def _cached(name: str, revision: str | None, file: str | None) -> Path | None:
    """Returns the folder of a complete snapshot in the hub's cache, or None; needs no network."""
    known = try_to_load_from_cache(name, file or CONFIG, revision=revision)
    if not isinstance(known, str):
        return None
    if file is not None:
        return Path(known.removesuffix(file.replace("/", os.sep)))
    folder = Path(known).parent
    needed = [TOKENIZER, *_shards(folder, name)]  # shards come last, see _download
    if all((folder / part).is_file() for part in needed):
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
    with _explained(name, where, revision):
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(patterns)))


@contextlib.contextmanager
def _explained(name: str, where: str, revision: str | None = None) -> Iterator[None]:
    """Turns what the hub's client raises into errors that say what to do."""
    try:
        yield
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
