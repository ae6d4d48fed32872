"""Names become folders; what cannot be fetched is explained."""

from __future__ import annotations

import json
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest import mock

import huggingface_hub
import pytest
from huggingface_hub import errors

from rt_drama3.checkpoint import read_config, resolve, source
from rt_drama3.checkpoint.gguf import Writer
from rt_drama3.checkpoint.source import resolve_codec
from rt_drama3.errors import CheckpointError, ConfigError
from tests.checkpoint.conftest import edit_json, rewrite


def test_nano_is_embedded() -> None:
    assert read_config(resolve("nano")).num_codebooks == 5


def test_folder(tiny_checkpoint: Path) -> None:
    assert resolve(str(tiny_checkpoint)) == tiny_checkpoint


def test_folder_wins_over_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fishaudio" / "drama-3").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve("fishaudio/drama-3") == Path("fishaudio/drama-3")


@pytest.mark.parametrize("name", ["nano", "."])
def test_revision_of_something_local(name: str) -> None:
    with pytest.raises(ConfigError, match="revision 'main' was given, but"):
        resolve(name, "main")


def test_file_in_place_of_a_folder(tiny_checkpoint: Path) -> None:
    with pytest.raises(CheckpointError, match="is a file; give the folder"):
        resolve(str(tiny_checkpoint / "config.json"))


@pytest.mark.parametrize("name", ["voice.gguf", "voice.safetensors"])
def test_file_with_weights(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    assert resolve(str(tmp_path / name)) == tmp_path / name


@pytest.mark.parametrize(
    "name",
    [
        *("nanoo", "./missing", "/no/such/folder", "a/b/c", "a b/c", "a/", "missing.gguf"),
        *("a/b:c", "a/b:c.txt", "a/b:../c.gguf", "a/b:c/../../d.gguf", "a/b:/c.gguf"),
    ],
)
def test_no_such_thing(name: str) -> None:
    with pytest.raises(CheckpointError, match="nor a folder that exists, nor a hub id"):
        resolve(name)


class Hub:
    """Stands in for ``snapshot_download``: gives a folder, writes down what was asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls: list[tuple[str, str | None, list[str]]] = []

    def __call__(self, name: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        self.calls.append((name, revision, allow_patterns))
        return str(self.folder)


def test_only_the_needed_files_are_fetched(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(tiny)
    monkeypatch.setattr(source, "snapshot_download", hub)
    assert resolve("fishaudio/drama-3", "v3") == tiny
    (name, revision, small), (again, commit, shards) = hub.calls
    assert name == again == "fishaudio/drama-3"
    assert revision == "v3"
    assert {"config.json", "codec.pth", "tokenizer.json"} <= set(small)
    assert not any("*.safetensors" in pattern for pattern in small)
    # The second call is pinned to the commit of the first, whose name the snapshot's folder has.
    assert commit == tiny.name
    assert shards == [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]


def test_single_file_of_a_hub_model(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rewrite(tiny, lambda _: None)
    hub = Hub(tiny)
    monkeypatch.setattr(source, "snapshot_download", hub)
    resolve("someone/drama-3-small")
    assert hub.calls[1][2] == ["model.safetensors"]


def test_hub_model_of_another_kind(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edit_json(tiny / "model.safetensors.index.json", lambda index: index.pop("weight_map"))
    monkeypatch.setattr(source, "snapshot_download", Hub(tiny))
    with pytest.raises(CheckpointError, match="weight_map; is some/thing a Drama 3"):
        resolve("some/thing")


def _gguf(path: Path, architecture: str) -> None:
    with Writer(path, {"general.architecture": architecture}, []):
        pass


class Repository(Hub):
    """Stands in for a repository without an index: files appear when they are asked for."""

    def __init__(self, folder: Path, files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder)
        folder.mkdir()
        self.files = files
        monkeypatch.setattr(source, "snapshot_download", self)
        monkeypatch.setattr(source, "list_repo_files", lambda *_args, **_more: files)

    def __call__(self, name: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        for file in {*self.files} & {*allow_patterns}:
            half = "clip" if "mmproj" in file else "qwen35moe" if "text" in file else "audiocpp"
            _gguf(self.folder / file, half)
        return super().__call__(name, revision=revision, allow_patterns=allow_patterns)


def test_a_file_of_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Repository(tmp_path / "commit", ["big-Q4_K.gguf", "big-Q3_K.gguf"], monkeypatch)
    assert resolve("some/thing:big-Q3_K.gguf") == tmp_path / "commit" / "big-Q3_K.gguf"
    assert hub.calls[1] == ("some/thing", "commit", ["big-Q3_K.gguf"])
    with pytest.raises(CheckpointError, match=r"no file big-Q2_K.gguf.*big-Q3_K.gguf, big-Q4_K"):
        resolve("some/thing:big-Q2_K.gguf")
    with pytest.raises(CheckpointError, match=r"give one, such as some/thing:big-Q3_K.gguf"):
        resolve("some/thing")


@pytest.mark.parametrize(
    ("files", "fetched"),
    [
        (["one.gguf"], ["one.gguf"]),
        (["model-00001.safetensors", "model-00002.safetensors"], None),
        (["voice.safetensors", "codec.safetensors"], ["voice.safetensors"]),
    ],
)
def test_a_repository_with_one_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: list[str], fetched: list[str] | None
) -> None:
    hub = Repository(tmp_path / "commit", files, monkeypatch)
    assert resolve("some/thing") == tmp_path / "commit"
    assert hub.calls[2][2] == (fetched or files)


def test_a_repository_without_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Repository(tmp_path / "commit", ["README.md"], monkeypatch)
    with pytest.raises(CheckpointError, match="some/thing has no weights"):
        resolve("some/thing")


def test_both_files_of_a_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = ["text.gguf", "mmproj-Q8_0.gguf", "mmproj-F16.gguf"]
    hub = Repository(tmp_path / "commit", files, monkeypatch)
    resolve("some/thing:text.gguf")
    assert [call[2] for call in hub.calls[1:]] == [["text.gguf"], ["mmproj-F16.gguf"]]


def test_a_file_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "hub" / "models--some--thing"
    file = model / "snapshots" / COMMIT / "sub" / "x.gguf"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(source, "snapshot_download", lambda *_, **__: pytest.fail("downloaded"))
    assert resolve("some/thing:sub/x.gguf", COMMIT) == file


def test_only_the_codec_is_fetched(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(tiny)
    monkeypatch.setattr(source, "snapshot_download", hub)
    assert resolve_codec("fishaudio/drama-3") == tiny
    assert hub.calls[0][2] == ["codec.pth", "*codec.safetensors", "codec_config.json"]
    assert resolve_codec(str(tiny / "codec.pth")) == tiny / "codec.pth"
    with pytest.raises(CheckpointError, match="codec 'nothing' is neither"):
        resolve_codec("nothing")


COMMIT = "0123456789" * 4


@pytest.fixture
def cached_model(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a complete snapshot of ``fishaudio/drama-3`` in the hub's cache."""
    model = tmp_path / "hub" / "models--fishaudio--drama-3"
    folder = model / "snapshots" / COMMIT
    shutil.copytree(tiny, folder)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(COMMIT)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    return folder


@contextmanager
def hub_server(answer: bytes | None, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A hub that gives one answer, or none; yields the paths of its requests."""
    requests: list[str] = []
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            if answer is None:
                ended.wait(60)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(source, "snapshot_download", lambda *_, **__: pytest.fail("downloaded"))
    try:
        yield requests
    finally:
        ended.set()
        server.shutdown()
        server.server_close()


def test_a_pinned_commit_in_the_cache_needs_no_network(
    cached_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hub_server(None, monkeypatch) as requests:
        assert resolve("fishaudio/drama-3", COMMIT) == cached_model
    assert not requests


@pytest.mark.parametrize("revision", [None, "main"])
def test_a_cached_model_is_used_when_the_hub_does_not_answer(
    cached_model: Path,
    revision: str | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with hub_server(None, monkeypatch) as requests:
        assert resolve("fishaudio/drama-3", revision) == cached_model
    assert len(requests) <= 1  # no retries
    assert "the hub does not answer" in caplog.text


def test_a_cached_model_is_used_when_the_hub_refuses_connections(
    cached_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and does not listen
        endpoint = f"http://127.0.0.1:{bound.getsockname()[1]}"
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", endpoint)
        monkeypatch.setattr(source, "snapshot_download", lambda *_, **__: pytest.fail("asked"))
        assert resolve("fishaudio/drama-3") == cached_model


def test_a_cached_model_that_is_the_newest_costs_one_request(
    cached_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "_HUB_SECONDS", 60)
    with hub_server(json.dumps({"sha": COMMIT}).encode(), monkeypatch) as requests:
        assert resolve("fishaudio/drama-3") == cached_model
    assert requests == ["/api/models/fishaudio/drama-3/revision/main"]


def test_a_newer_commit_is_downloaded(
    cached_model: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "_HUB_SECONDS", 60)
    hub = Hub(tiny)
    with hub_server(json.dumps({"sha": "f" * 40}).encode(), monkeypatch):
        monkeypatch.setattr(source, "snapshot_download", hub)
        assert resolve("fishaudio/drama-3") == tiny
    assert len(hub.calls) == 2


def test_an_incomplete_snapshot_is_downloaded(
    cached_model: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    next(cached_model.glob("*.safetensors")).unlink()
    hub = Hub(tiny)
    monkeypatch.setattr(source, "snapshot_download", hub)
    assert resolve("fishaudio/drama-3", COMMIT) == tiny
    assert len(hub.calls) == 2


def _response(kind: type[errors.HfHubHTTPError]) -> errors.HfHubHTTPError:
    return kind("refused", response=mock.MagicMock())  # the hub's HTTP library varies by version


@pytest.mark.parametrize(
    ("error", "part"),
    [
        (
            errors.LocalEntryNotFoundError("offline"),
            "not a folder here, not in the local cache",
        ),
        (errors.HFValidationError("bad"), "not a valid hub id"),
        (_response(errors.GatedRepoError), "accept its licence at https://huggingface.co/fish"),
        (
            _response(errors.RepositoryNotFoundError),
            "fishaudio/drama-3 is neither a folder here nor",
        ),
        (_response(errors.RevisionNotFoundError), "has no revision 'v9'"),
        (_response(errors.HfHubHTTPError), "download of fishaudio/drama-3 at v9 failed: refused"),
        (OSError(28, "No space left on device"), "No space left on device. Check the connection"),
        (errors.HfHubHTTPError.__bases__[0]("connection reset"), "failed: connection reset"),
    ],
)
def test_failed_downloads(monkeypatch: pytest.MonkeyPatch, error: Exception, part: str) -> None:
    def fail(*_args: Any, **_kwargs: Any) -> str:
        raise error

    monkeypatch.setattr(source, "snapshot_download", fail)
    with pytest.raises(CheckpointError) as caught:
        resolve("fishaudio/drama-3", "v9")
    assert part in str(caught.value)


def test_offline_without_a_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The hub's own client, forbidden to go online."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(CheckpointError, match="use the embedded model 'nano'"):
        resolve("fishaudio/drama-3", "78e5ab79e49a")
