"""Text from and to consoles, locales and editors of every kind."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import wave
from pathlib import Path
from typing import Any

import pytest

from rt_drama3.cli import speak_outputs
from rt_drama3.cli.speak_inputs import read_text
from rt_drama3.errors import ConfigError, RequestError
from rt_drama3.system import text_io
from rt_drama3.system.settings import read_toml

BOM = b"\xef\xbb\xbf"
TOML = "[server]\nport = 0\n"


def stdin(data: bytes) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(data))


def rt_drama3(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rt_drama3", *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=120,
        check=False,
    )


def test_a_byte_order_mark_is_not_part_of_a_config_file(tmp_path: Path) -> None:
    file = tmp_path / "b.toml"
    file.write_bytes(BOM + TOML.encode())
    assert read_toml(file) == {"server": {"port": 0}}


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_a_config_file_in_utf_16_is_named_so(tmp_path: Path, encoding: str) -> None:
    file = tmp_path / "b.toml"
    text = TOML if encoding == "utf-16" else "\ufeff" + TOML
    file.write_bytes(text.encode(encoding))
    with pytest.raises(ConfigError, match=r"b.toml is UTF-16, not UTF-8; save it as UTF-8\."):
        read_toml(file)


def test_a_byte_order_mark_is_not_spoken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", stdin(BOM + b"Hello.\n"))
    assert read_text("-") == "Hello."


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"caf\xe9", r"standard input is not UTF-8 text \(byte 3\)"),
        ("Hi".encode("utf-16"), "standard input is UTF-16, not UTF-8"),
    ],
)
def test_other_encodings_of_stdin_are_errors(
    data: bytes, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", stdin(data))
    with pytest.raises(RequestError, match=message):
        read_text("-")


def test_closed_stdin_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(RequestError, match="standard input is closed"):
        read_text("-")


@pytest.mark.parametrize(("out", "sinks"), [(Path("-"), None), (None, ["-"]), (None, ["wav:-"])])
def test_closed_stdout_is_an_error(
    out: Path | None, sinks: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(RequestError, match="standard output is closed"):
        speak_outputs.choose_output(out, sinks, [])


def test_a_sink_given_as_a_file_is_explained() -> None:
    with pytest.raises(RequestError, match="FORMAT:PATH is a sink, --sink wav:/dev/stdout"):
        speak_outputs.choose_output(Path("wav:/dev/stdout"), None, [])


def test_text_that_the_locale_could_not_decode_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError, match="the text is not valid UTF-8"):
        text_io.check_argument("caf\udce9")
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "ascii")
    with pytest.raises(RequestError, match=r"the locale is not UTF-8 but ascii.*LC_ALL=C\.UTF-8"):
        text_io.check_argument("caf\udcc3\udca9")


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_consoles_escape_what_their_encoding_lacks(
    errors: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.BytesIO()
    console: Any = io.TextIOWrapper(written, encoding="cp1252", errors=errors, newline="")
    monkeypatch.setattr(sys, "stdout", console)
    monkeypatch.setattr(sys, "stderr", None)
    text_io.escape_unprintable()
    print("文 caf\udce9 é", file=console, flush=True)
    assert written.getvalue() == b"\\u6587 caf\\udce9 \xe9\n"


@pytest.mark.parametrize("encoding", ["cp1252:strict", "latin-1:strict"])
def test_no_console_gives_a_traceback(tmp_path: Path, encoding: str) -> None:
    file = tmp_path / "文.wav"
    with wave.open(str(file), "wb") as wav:
        wav.setparams((1, 2, 24_000, 0, "NONE", ""))
        wav.writeframes(bytes(4_800))
    done = rt_drama3("repair", str(file), str(tmp_path / "无.wav"), PYTHONIOENCODING=encoding)
    assert done.returncode == 1
    assert "\\u6587.wav: already correct" in done.stdout
    assert "\\u65e0.wav" in done.stderr
    assert "Traceback" not in done.stderr
