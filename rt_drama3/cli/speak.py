"""``rt-drama3 speak``: one text to a file or to sinks.

Heavy imports wait until the command runs, so that ``--help`` is fast.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import DownloadColumn, MofNCompleteColumn

from rt_drama3.cli import common, speak_inputs, speak_outputs
from rt_drama3.errors import RequestError

if TYPE_CHECKING:
    from rt_drama3.cli.speak_outputs import Output
    from rt_drama3.drama3 import Drama3
    from rt_drama3.engine.events import SpeechSummary


@common.with_model_options
def speak(
    text: Annotated[str, typer.Argument(help="Text to speak; - reads stdin.")],
    out: speak_outputs.Out = None,
    sink: speak_outputs.Sinks = None,
    *,
    options: common.ModelOptions,
    seed: Annotated[
        int | None, typer.Option(help="Random seed; the same seed gives the same take.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Sampling temperature; 0 is greedy.")
    ] = None,
    head_temperature: Annotated[
        float | None,
        typer.Option(help="Temperature of the codebook heads (default: --temperature)."),
    ] = None,
    top_p: Annotated[float | None, typer.Option(help="Top-p (nucleus) threshold.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Top-k limit.")] = None,
    max_seconds: Annotated[
        float | None, typer.Option(help="Maximum duration in seconds (default: from the text).")
    ] = None,
    normalize: Annotated[
        str,
        typer.Option(
            help="Read numbers, signs and Markdown as words: auto, on or off; auto asks the model."
        ),
    ] = "auto",
    ref: speak_inputs.References = None,
    ref_text: speak_inputs.Transcripts = None,
    guidance: speak_inputs.Guidance = None,
    steer: speak_inputs.Steer = None,
    previous_takes_file: speak_inputs.PreviousTakesFile = None,
    take_out: speak_inputs.TakeOut = None,
    best_of: speak_inputs.BestOf = None,
    asr_model: speak_inputs.AsrModel = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print measurements as JSON to stdout (stderr with --out -)."),
    ] = False,
) -> None:
    """Speak a text into a file or an audio device, while it is generated."""
    from rt_drama3.engine.speech import SpeechRequest

    # SIGTERM raises SystemExit, so that files are closed with correct sizes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    text = speak_inputs.read_text(text)
    references = speak_inputs.paired(ref, ref_text)
    if max_seconds is not None and not max_seconds > 0:
        raise RequestError(f"--max-seconds is {max_seconds}; it must be above 0.")
    output = speak_outputs.choose_output(out, sink, [audio for _, audio in references])
    common.check_folder(take_out)
    with common.progress_bar(f"loading {options.model}", DownloadColumn()) as update:
        drama = options.load(progress=update)
    with contextlib.closing(drama):
        drama.engine.wait_until_warm()
        rate, max_frames = drama.sample_rate, None
        if max_seconds is not None:
            max_frames = max(1, round(max_seconds * drama.codec.config.frame_rate))
        request = SpeechRequest(
            text,
            references=speak_inputs.read_grids(references, drama.config),
            seed=seed,
            temperature=temperature,
            head_temperature=head_temperature,
            top_p=top_p,
            top_k=top_k,
            max_frames=max_frames,
            normalize=normalize,
            guidance=guidance,
            steering=speak_inputs.steering_pairs(steer),
            previous_takes=speak_inputs.previous_takes(previous_takes_file, drama.config),
        )
        speech = speak_inputs.open_speech(drama, request, best_of, asr_model)
        with common.progress_bar("speaking", MofNCompleteColumn()) as update:
            first_audio = speak_outputs.play(speech, output, rate, update)
        summary = speech.result()
        speak_inputs.write_take_out(take_out, summary)
        facts = _measurements(drama, output, summary)
        if as_json:
            facts |= {"model": options.model, "first_audio_ms": first_audio}
            typer.echo(json.dumps(facts), err=output.to_stdout)
        else:
            _report(output, facts, summary)


def _measurements(drama: Drama3, output: Output, summary: SpeechSummary) -> dict[str, Any]:
    seconds = summary.delivered * drama.codec.config.frame_samples / drama.sample_rate
    return {
        "file": output.file,
        "sinks": [] if output.file else output.specs,
        "seconds": seconds,
        "sample_rate": output.sample_rate(drama.sample_rate),
        "frames": summary.delivered,
        "complete": summary.complete,
        "seed": summary.seed,
        "device": str(drama.model.device),
        "dtype": str(drama.model.dtype).removeprefix("torch."),
        "step": drama.engine.step_mode,
        **summary.durations.figures(summary.delivered, seconds),
    }


def _report(output: Output, facts: dict[str, Any], summary: SpeechSummary) -> None:
    speed = f", {1 / facts['rtf']:.1f}x real time" if facts["rtf"] else ""
    common.show(
        f"{output}: {facts['seconds']:.2f} s at {facts['sample_rate']} Hz{speed}, "
        f"seed {summary.seed}"
    )
    if not summary.segments:
        common.show("no speakable text", "yellow")
    if not summary.complete:
        common.show("the speech was cut at its length limit", "yellow")
