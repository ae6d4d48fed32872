"""``rt-drama3 doctor``: hardware, chosen settings and missing dependencies.

Each probe checks one thing. A probe that fails is a line of the report and does not stop the
others. Heavy imports (torch) happen inside the probes.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from rt_drama3 import __version__
from rt_drama3.cli.common import AsJson, show
from rt_drama3.cli.doctor_report import Finding, Probe, render, run_probes
from rt_drama3.system import machine
from rt_drama3.system.paths import cache_dir

_FP8_CAPABILITY = (8, 9)  # the first NVIDIA generation (Ada, then Hopper) with FP8 arithmetic
_CPU_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "asimd", "bf16", "i8mm")
_TEMPORARY_BYTES = 256 << 20  # room that compiled steps need in the temporary folder
_VOICE_FILES = ("config.json", "model.safetensors", "codec.pth", "tokenizer.json")


def doctor(
    as_json: AsJson = False,
    fix: Annotated[
        bool,
        typer.Option("--fix", help="First remove damaged packages and failure records."),
    ] = False,
) -> None:
    """Report hardware, chosen settings and missing dependencies."""
    from rt_drama3.aot import failures

    if fix:
        for path in failures.clear():
            show(f"removed {path}")
    report = run_probes(PROBES)  # in a few seconds, most of which import torch
    if as_json:
        facts = {section: [asdict(one) for one in found] for section, found in report.items()}
        typer.echo(json.dumps(facts, default=str))
    else:
        render(report, Console())


# --- machine ------------------------------------------------------------------------------------


def _python() -> Iterable[Finding]:
    version = f"{platform.python_implementation()} {platform.python_version()}"
    yield Finding("rt_drama3", __version__)
    yield Finding("python", f"{version} at {sys.executable}")


def _system() -> Iterable[Finding]:
    yield Finding("system", f"{platform.platform()} ({platform.machine()})")


def _cpu() -> Iterable[Finding]:
    facts = machine.cpuinfo()
    flags = facts.get("flags", facts.get("Features", "")).split()
    known = " ".join(flag for flag in _CPU_FLAGS if flag in flags)
    cores = f"{machine.usable_cores()} of {os.cpu_count()} cores usable"
    limit = machine.cpu_limit()
    if limit is not None:
        cores += f", limited to {limit:g} cores of CPU time"
    yield Finding("cpu", ", ".join(filter(None, [machine.processor_name(), cores, known])))


def _memory() -> Iterable[Finding]:
    memory = machine.memory()
    parts = ["unknown" if memory.total is None else f"{_size(memory.total)} total"]
    if memory.free is not None:
        parts.append(f"{_size(memory.free)} free")
    if memory.limit is not None:
        parts.append(f"this process is limited to {_size(memory.limit)}")
    yield Finding("memory", ", ".join(parts))


# --- compute ------------------------------------------------------------------------------------


def _torch() -> Iterable[Finding]:
    import torch

    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
    kernels = torch.backends.cpu.get_cpu_capability()
    yield Finding("torch", f"{torch.__version__} ({build}; CPU kernels for {kernels})")


def _cuda() -> Iterable[Finding]:
    import torch

    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            facts = torch.cuda.get_device_properties(index)
            capability = (facts.major, facts.minor)
            fp8 = "with" if capability >= _FP8_CAPABILITY else "without"
            yield Finding(
                f"cuda:{index}",
                f"{facts.name}, {_size(facts.total_memory)}, capability {facts.major}."
                f"{facts.minor}, {fp8} FP8 arithmetic",
            )
    elif shutil.which("nvidia-smi"):
        advice = (
            "this torch is built for the CPU; install its CUDA build (pytorch.org/get-started)"
            if torch.version.cuda is None
            else "the NVIDIA driver does not answer or is too old for this torch; see nvidia-smi"
        )
        yield Finding(
            "cuda", "an NVIDIA driver is there, but torch finds no device", "note", advice
        )
    else:
        yield Finding("cuda", "no device; needed for the full Drama 3, not for the nano voice")


def _compiler() -> Iterable[Finding]:
    from rt_drama3.system.compiling import compiler

    path = compiler()
    if path is not None:
        yield Finding("compiler", f"{path}{_first_line_of([path, '--version'])}")
        return
    named = os.environ.get("CXX")
    if named:
        yield Finding(
            "compiler",
            f"CXX is {named!r}, which is not a program; other compilers are not tried",
            "missing",
            "set CXX to one compiler, without arguments, or unset it to use g++ or clang++",
        )
        return
    yield Finding(
        "compiler",
        "no C++ compiler, so the CPU step cannot be compiled",
        "missing",
        "Debian: apt-get install g++; macOS: xcode-select --install; Windows: Visual Studio Build "
        "Tools",
    )


def _first_line_of(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""  # it may compile without reporting a version
    return f" ({done.stdout.splitlines()[0]})" if done.stdout.strip() else ""


def _triton() -> Iterable[Finding]:
    import torch

    if importlib.util.find_spec("triton") is not None:
        yield Finding("triton", importlib.metadata.version("triton"))
    elif torch.cuda.is_available():
        yield Finding(
            "triton",
            "not installed; torch.compile needs it on CUDA",
            "missing",
            "pip install triton (Windows: triton-windows), in the version that torch requires",
        )
    else:
        yield Finding("triton", "not installed; not needed without CUDA")


# --- audio --------------------------------------------------------------------------------------


def _decoder() -> Iterable[Finding]:
    import av

    libavformat = ".".join(map(str, av.library_versions["libavformat"]))
    yield Finding("files", f"PyAV {av.__version__} (libavformat {libavformat})")


def _speaker() -> Iterable[Finding]:
    if importlib.util.find_spec("pyaudio") is None:
        if "PulseAudio" in (machine.sound_servers() or ()):
            yield Finding("speaker", "the sound server's; pyaudio, for others, is not installed")
            return
        yield Finding(
            "speaker",
            "pyaudio is not installed; speech can be written to files but not played",
            "missing",
            "pip install 'rt-drama3[speaker]' (Debian: first apt-get install portaudio19-dev gcc; "
            "macOS: brew install portaudio)",
        )
        return
    with machine.silent_stderr():
        pyaudio = importlib.import_module("pyaudio")
        audio = pyaudio.PyAudio()
        try:
            found = [audio.get_device_info_by_index(i) for i in range(audio.get_device_count())]
        finally:
            audio.terminate()
    outputs = sum(device["maxOutputChannels"] > 0 for device in found)
    value = f"pyaudio {pyaudio.__version__}, {len(found)} devices, {outputs} with outputs"
    if outputs:
        yield Finding("speaker", value)
    else:
        yield Finding("speaker", value, "note", "connect an output device or start a sound server")


def _sound_server() -> Iterable[Finding]:
    reached = machine.sound_servers()
    if reached is None:
        yield Finding("sound server", f"part of {platform.system()}")
    elif reached:
        yield Finding("sound server", " and ".join(reached))
    else:
        yield Finding("sound server", "neither PulseAudio nor PipeWire is reachable", "note")


# --- folders ------------------------------------------------------------------------------------


def _nano() -> Iterable[Finding]:
    folder = Path(__file__).parents[1] / "voices" / "nano"
    absent = [name for name in _VOICE_FILES if not (folder / name).is_file()]
    if absent:
        text = f"{folder} lacks {', '.join(absent)}"
        yield Finding("nano voice", text, "missing", "reinstall rt-drama3")
    else:
        total = sum(file.stat().st_size for file in folder.iterdir())
        yield Finding("nano voice", f"{folder} ({total / 1e6:.0f} MB)")


def _hub_cache() -> Iterable[Finding]:
    from huggingface_hub import constants

    offline = "; offline (HF_HUB_OFFLINE)" if constants.HF_HUB_OFFLINE else ""
    yield Finding("checkpoints", _room(Path(constants.HF_HUB_CACHE))[0] + offline)


def _own_cache() -> Iterable[Finding]:
    text, usable = _room(cache_dir())
    if usable:
        yield Finding("cache", text)
    else:
        yield Finding(
            "cache",
            text,
            "missing",
            "make it writable, or set RT_DRAMA3_CACHE to a writable folder; until then compiled "
            "steps are not kept, and the nano voice runs in the slower eager mode",
        )


def _temporary_folder() -> Iterable[Finding]:
    """The temporary folder, which compiled steps are unpacked into."""
    variables = [name for name in ("TMPDIR", "TEMP", "TMP") if os.environ.get(name)]
    for name in variables[:1]:
        text, usable = _room(Path(os.environ[name]))
        if not usable or not Path(os.environ[name]).is_dir():
            advice = f"set {name} to a writable folder, or unset it; until then eager mode is used"
            yield Finding("temporary files", f"{name} is {text}", "missing", advice)
            return
    folder = Path(tempfile.gettempdir())
    free = shutil.disk_usage(folder).free
    if free < _TEMPORARY_BYTES:
        advice = "free some space; compiled steps are unpacked there"
        yield Finding("temporary files", _room(folder)[0], "note", advice)
    else:
        yield Finding("temporary files", _room(folder)[0])


def _compiled_packages() -> Iterable[Finding]:
    """Compiled packages, and records of failed builds."""
    from rt_drama3.aot import failures

    built, broken = failures.packages()
    total = sum(path.stat().st_size for path in built)
    yield Finding("compiled steps", f"{len(built)} packages ({total / 1e6:.0f} MB)")
    for path in broken:
        advice = "it is rebuilt when next needed; rt-drama3 doctor --fix removes it now"
        yield Finding("compiled steps", f"{path} is damaged", "note", advice)
    for path, reason, counts in failures.records():
        advice = "rt-drama3 doctor --fix clears this record"
        if counts:
            advice += ", so that the next start retries"
        state = "retried after a day" if counts else "retried at the next start"
        if path.suffix == failures.DISCARDED:
            state = "it was removed, to be rebuilt when next needed"
        yield Finding("compiled steps", f"{reason}; {state} ({path})", "note", advice)


def _room(folder: Path) -> tuple[str, bool]:
    """Returns a description of a folder, and whether it can be written to or created."""
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    state = "" if existing == folder else ", not created yet"
    usable = existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
    if not usable:
        state += ", not writable" if existing.is_dir() else f", but {existing} is not a folder"
    return f"{folder} ({_size(shutil.disk_usage(existing).free)} free{state})", usable


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"


# --- plan ---------------------------------------------------------------------------------------


def _device() -> Iterable[Finding]:
    import torch

    from rt_drama3 import loading

    device = loading.pick_device("auto")
    small = loading.pick_dtype(None, device, loading.SMALL_MODEL - 1)
    large = loading.pick_dtype(None, device, loading.FLOAT32_MODEL)
    yield Finding("device", str(device))
    names = [str(dtype).removeprefix("torch.") for dtype in (small, large)]
    both = names[0] if small == large else f"{names[0]} for small models, {names[1]} for large ones"
    yield Finding("dtype", both)
    if device.type == "cpu":
        own = loading.pick_threads(loading.FLOAT32_MODEL, torch.get_num_threads())
        yield Finding("threads", f"1 for small models such as nano, {own} for large ones")


def _engine() -> Iterable[Finding]:
    """The engine's settings, and the sources of those that are not defaults."""
    from rt_drama3.engine.config import read_engine_config
    from rt_drama3.errors import ConfigError

    try:
        config = read_engine_config()
    except ConfigError as error:
        yield Finding("engine", "invalid settings", "failed", str(error))
        return
    for setting in fields(config):
        if setting.name != "origin":
            value = getattr(config, setting.name)
            source = config.origin.get(setting.name)
            shown = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
            if setting.name == "batch_sizes":
                shown = ", ".join(map(str, config.sizes))
            yield Finding(f"engine {setting.name}", shown + (f" (from {source})" if source else ""))


def _nano_budget() -> Iterable[Finding]:
    """Memory per stream of the embedded voice; ``model info --plan`` computes it for any."""
    from rt_drama3 import checkpoint
    from rt_drama3.checkpoint.memory import plan
    from rt_drama3.engine.config import EngineConfig

    config = checkpoint.read_config(checkpoint.resolve("nano"))
    budget = plan(config, dtype="float32", context=EngineConfig().context, all_experts=True)
    yield Finding(
        "nano voice",
        f"{budget.stream / 1e6:.1f} MB per stream, {budget.frame / 1e6:.1f} MB moved per frame "
        "(others: rt-drama3 model info --plan)",
    )


PROBES: dict[str, dict[str, Probe]] = {
    "machine": {"python": _python, "system": _system, "cpu": _cpu, "memory": _memory},
    "compute": {"torch": _torch, "cuda": _cuda, "compiler": _compiler, "triton": _triton},
    "audio": {"files": _decoder, "speaker": _speaker, "sound server": _sound_server},
    "folders": {
        "nano voice": _nano,
        "checkpoints": _hub_cache,
        "cache": _own_cache,
        "temporary files": _temporary_folder,
        "compiled steps": _compiled_packages,
    },
    "plan": {"device": _device, "engine": _engine, "nano budget": _nano_budget},
}
