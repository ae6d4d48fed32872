"""``python -m training``: one command per stage; see README.md in this folder."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path

import torch

log = logging.getLogger("training")

Arguments = argparse.Namespace


def _device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return name


def _bfloat16_pays(device: str) -> bool:
    """Whether products in bfloat16 are faster there; a CPU without them emulates them, slowly."""
    if device == "cpu":
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return True


def _text(a: Arguments) -> None:
    from training import evaluate, teacher, text

    vocabulary = a.vocabulary.read_text(encoding="utf-8").splitlines()
    held_out = [sentence for _, sentence in evaluate.held_out()]
    lines, lexicon = text.make_lines(
        a.wordnet, teacher.assets(), vocabulary, held_out, a.lines, a.seed
    )
    text.write(a.data / "text.json", lines, lexicon)
    log.info("%d lines, %d words in the lexicon", len(lines), len(lexicon))


def _teacher(a: Arguments) -> None:
    from training import teacher, text

    lines, _ = text.load(a.data / "text.json")
    teacher.read_lines(a.data, lines[: a.lines], worker=a.worker, workers=a.workers)


def _codebooks(a: Arguments) -> None:
    from training.clips import load_shard, shard_files
    from training.codebooks import build, shard_features

    pairs = [shard_features(load_shard(path)) for path in shard_files(a.data)[: a.shards]]
    mels, phones = (torch.cat(part) for part in zip(*pairs, strict=True))
    build(mels, phones, a.seed).save(a.data / "codebooks.pt")


def _codes(a: Arguments) -> None:
    from training.codebooks import Codebooks
    from training.codes import encode_all, write_lexicon

    encode_all(a.data, Codebooks.load(a.data / "codebooks.pt"), 60 * a.wait)
    write_lexicon(a.data)


def _language(a: Arguments) -> None:
    from training.language import Settings, train

    device = _device(a.device)
    settings = Settings(
        rate=a.rate,
        minutes=a.minutes,
        steps=a.steps,
        rows=a.rows,
        seed=a.seed,
        device=device,
        autocast=not a.full_precision and _bfloat16_pays(device),
        worker=a.worker,
        workers=a.workers,
    )
    train(a.run, a.data, settings, a.start)


def _codec(a: Arguments) -> None:
    from training.codec import Settings, train

    settings = Settings(
        half=a.half,
        rate=a.rate,
        minutes=a.minutes,
        steps=a.steps,
        seed=a.seed,
        device=_device(a.device),
    )
    train(a.run, a.data, settings, a.start)


def _export(a: Arguments) -> None:
    from training.export import export
    from training.lexicon import Lexicon

    def checkpoint(name: str) -> Path | None:
        path: Path = a.run / name
        return path if path.exists() else None

    lexicon = Lexicon.load(a.data / "lexicon.json")
    size = export(
        a.voice,
        lexicon,
        checkpoint("language.pt"),
        checkpoint("decode.pt"),
        checkpoint("encode.pt"),
        a.start,
        gain=a.gain,
        keep_settings=a.keep_settings,
    )
    log.info("%s: %.1f MB", a.voice, size / 1e6)


def _evaluate(a: Arguments) -> None:
    from hibari import Hibari

    from rt_drama3 import Drama3, load
    from rt_drama3.engine.config import EngineConfig
    from training.asr import Judge
    from training.codebooks import Codebooks
    from training.evaluate import Copies, evaluate, evaluate_long, held_out, paragraph
    from training.teacher import Teacher

    engine = EngineConfig(step_mode="eager")
    drama = load(a.voice, device=_device(a.device), threads=1, engine=engine)
    judge = Judge(a.data)
    if a.paragraph:
        parts = evaluate_long(drama, judge, paragraph(), a.seed)
        sys.stdout.write("".join(f"{part.line()}\n" for part in parts))
        return
    speaker: Drama3 | Copies = drama
    if a.codec:
        speaker = Copies(drama, Teacher(), Codebooks.load(a.data / "codebooks.pt"))
    report = evaluate(speaker, Hibari(), judge, held_out(a.quick), a.seed)
    for one in report.sentences:
        if one.errors:
            sys.stdout.write(f"{one.errors}/{one.words} | {one.text} | {one.heard}\n")
    sys.stdout.write("\n".join(report.lines()) + "\n")
    if a.json is not None:
        a.json.write_text(json.dumps(report.json(), indent=1, ensure_ascii=False) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of text, audio and codes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="of the CPU")
    stages = parser.add_subparsers(required=True, metavar="STAGE")

    def stage(name: str, about: str, run: Callable[[Arguments], None]) -> argparse.ArgumentParser:
        made = stages.add_parser(name, help=about)
        made.set_defaults(stage=run)
        return made

    made = stage("text", "the lines to read and the words to know", _text)
    made.add_argument("--wordnet", type=Path, required=True, help="folder with data.noun ...")
    made.add_argument("--vocabulary", type=Path, required=True, help="vocabulary.txt of Whisper")
    made.add_argument("--lines", type=int, default=45_000)

    made = stage("teacher", "the teacher reads them", _teacher)
    made.add_argument("--lines", type=int, default=None, help="limit of the number of lines")
    made.add_argument("--worker", type=int, default=0)
    made.add_argument("--workers", type=int, default=1)

    made = stage("codebooks", "what the codes mean, from the first shards", _codebooks)
    made.add_argument("--shards", type=int, default=14)

    made = stage("codes", "codes of the audio, and the lexicon", _codes)
    made.add_argument("--wait", type=float, default=0, help="minutes to wait for more shards")

    made = stage("language", "trains the language model", _language)
    _add_training(made, rate=2e-3, minutes=90)
    made.add_argument("--rows", type=int, default=2200, help="padded rows of a batch")
    made.add_argument("--worker", type=int, default=0)
    made.add_argument("--workers", type=int, default=1, help="processes that share every step")
    made.add_argument("--full-precision", action="store_true", help="no bfloat16 products")

    made = stage("codec", "trains one half of the codec", _codec)
    made.add_argument("half", choices=["decode", "encode"])
    _add_training(made, rate=1e-3, minutes=60)

    made = stage("export", "writes the voice", _export)
    made.add_argument("--run", type=Path, required=True, help="folder with the checkpoints")
    made.add_argument("--voice", type=Path, required=True, help="folder to write")
    made.add_argument("--from", dest="start", type=Path, help="voice to take missing parts from")
    made.add_argument("--keep-settings", action="store_true", help="those of the voice begun with")
    made.add_argument("--gain", type=float, help="louder than the teacher by this factor")

    made = stage("evaluate", "word error rate on sentences that were never seen", _evaluate)
    made.add_argument("--voice", default="nano", help="name or folder")
    made.add_argument("--quick", action="store_true", help="20 sentences instead of 100")
    made.add_argument("--paragraph", action="store_true", help="300 words in one take, by thirds")
    made.add_argument(
        "--codec", action="store_true", help="the codec alone, on the teacher's codes"
    )
    made.add_argument("--device", default="cpu")
    made.add_argument("--json", type=Path, help="file for the whole report")
    return parser


def _add_training(parser: argparse.ArgumentParser, rate: float, minutes: float) -> None:
    parser.add_argument("--run", type=Path, required=True, help="folder for checkpoint and curve")
    parser.add_argument("--from", dest="start", type=Path, help="voice to begin with")
    parser.add_argument("--rate", type=float, default=rate, help="peak learning rate")
    parser.add_argument("--minutes", type=float, default=minutes, help="of the whole run")
    parser.add_argument("--steps", type=int, default=0, help="instead of minutes")
    parser.add_argument("--device", default="auto")


def main(arguments: list[str] | None = None) -> None:
    """Runs a stage."""
    parsed = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(parsed.threads)
    parsed.data.mkdir(parents=True, exist_ok=True)
    parsed.stage(parsed)


if __name__ == "__main__":
    main()
