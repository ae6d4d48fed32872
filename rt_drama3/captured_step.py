"""The frame step on CUDA: compiled as one graph, captured once, replayed with a single launch.

A frame of the full model is about a thousand kernels that take longer to launch one by one than to
run. So the unit is compiled (which fuses the small ones) and recorded as a CUDA graph, once per
batch size and attention length; a frame is then one ``replay()`` with nothing left for the host to
do. All graphs share one memory pool: only one runs at a time and none leaves results behind, since
the unit reads and writes static tensors.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch

from rt_drama3.errors import DeviceError
from rt_drama3.graph_step import FrameStep, StepTensors, frame_step
from rt_drama3.model import SpeechModel, kernels

log = logging.getLogger(__name__)

WARM_UPS = 3  # runs before a capture: compilation, loading of kernels, library workspaces

Unit = Callable[[SpeechModel, StepTensors], None]

_INDUCTOR: dict[str, Any] = {
    "triton.cudagraphs": False,  # capture is ours: one graph, one pool, static addresses
    # Fused operations round to bfloat16 where separate ones would, as the eager step does.
    "emulate_precision_casts": True,
    "shape_padding": False,  # it would time products and choose by the clock
}


class CapturedStep:
    """Runs the step of one ``FrameStep`` compiled, captured, or both: a ``Runner``.

    Construction compiles and captures every variant (a minute or so each for the full model, the
    compiler's cache makes it seconds the next time). It advances no stream, so a ``lazy`` one may
    prepare its variants while streams wait for their next frame.

    Args:
        step: whose tensors are advanced.
        batch_sizes: ascending. Fewer streams than a size leave its last slots idle. Products round
            differently at different sizes: with a single size, a stream's codes do not depend on
            how many others speak.
        lengths: attention lengths, ascending; None picks those of ``step``, or the whole context
            alone where attention reads no more than each stream's rows anyway.
        compile: compile the unit with ``torch.compile``.
        capture: record CUDA graphs.
        lazy: prepare a variant when it is first needed instead of now.
        backend: of ``torch.compile``.

    Raises:
        DeviceError: there is no CUDA device to capture on, or compilation or capture failed.
    """

    def __init__(
        self,
        step: FrameStep,
        batch_sizes: Sequence[int],
        lengths: Sequence[int] | None = None,
        *,
        compile: bool = True,
        capture: bool = True,
        lazy: bool = False,
        backend: str = "inductor",
    ) -> None:
        if capture and step.model.device.type != "cuda":
            raise DeviceError(
                f"CUDA graphs need a CUDA device, but the model is on {step.model.device}; "
                'use step_mode = "eager" or "compile".'
            )
        self._step = step
        self._sizes = tuple(batch_sizes)
        self._lengths = tuple(lengths or _lengths(step))
        self._compile, self._capture, self._backend = compile, capture, backend
        self._variants: dict[tuple[int, int], Callable[[], None]] = {}
        self._units: list[Unit] = []  # a graph may read constants that its compiled unit owns
        if capture:
            self._pool = torch.cuda.graph_pool_handle()
            # Warm-up and capture share a stream, and with it the libraries' workspaces.
            self._side = torch.cuda.Stream(step.model.device)
        if not lazy:
            # The largest first: the smaller ones then fit into the memory it has left in the pool.
            for size in reversed(self._sizes):
                for length in reversed(self._lengths):
                    self.prepare(size, length)

    def __call__(self, streams: int, length: int) -> None:
        """One frame for the leading ``streams`` slots; see ``FrameStep.run``."""
        size = next(n for n in self._sizes if n >= streams)
        length = next(n for n in self._lengths if n >= length)
        run = self._variants.get((size, length)) or self.prepare(size, length)
        run()

    @torch.inference_mode()
    def prepare(self, size: int, length: int) -> Callable[[], None]:
        """Compiles and captures one variant, unless it is there, and returns what runs it.

        Raises:
            DeviceError: that failed; the streams are as they were.
        """
        if (size, length) in self._variants:
            return self._variants[size, length]
        started = time.perf_counter()
        unit: Unit = frame_step
        if self._compile:
            unit = compiled_unit(f"{size}_{length}", self._backend)
        self._units.append(unit)
        model, tensors = self._step.model, self._step.tensors(0, size, length)

        def run() -> None:
            unit(model, tensors)

        # While every slot is inactive, a run changes results (of no frame) and cached rows that
        # the next frame writes anyway.
        state = self._step.state
        active = state.active.clone()
        state.active.zero_()
        task = "compiled"
        try:
            if self._capture:
                self._warm_up(run)
                task = "captured as a CUDA graph"
                self._variants[size, length] = self._captured(run)
            else:
                run()
                self._variants[size, length] = run
        except Exception as error:
            others = '"eager"' if task == "compiled" else '"compile" or "eager"'
            raise DeviceError(
                f"the frame step for {size} streams and {length} rows could not be {task} "
                f"({_first_line(error)}); step_mode = {others} does without."
            ) from error
        finally:
            state.active.copy_(active)
        log.info(
            "step for %d streams, %d rows: %.1f s", size, length, time.perf_counter() - started
        )
        return self._variants[size, length]

    def _warm_up(self, run: Callable[[], None]) -> None:
        current = torch.cuda.current_stream(self._step.model.device)
        self._side.wait_stream(current)
        with torch.cuda.stream(self._side):
            for _ in range(WARM_UPS):
                run()
        current.wait_stream(self._side)

    def _captured(self, run: Callable[[], None]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        # Other threads (the codec's) go on allocating while this one records.
        with torch.cuda.graph(
            graph, pool=self._pool, stream=self._side, capture_error_mode="thread_local"
        ):
            run()
        replay: Callable[[], None] = graph.replay
        return replay


def compiled_unit(name: str, backend: str = "inductor") -> Unit:
    """``frame_step`` compiled for the one set of shapes that it will see.

    The compiler keeps its variants per code object and gives up after a few, so each variant gets a
    code object of its own. A part that cannot be compiled is an error, not a slow surprise.
    """
    code = frame_step.__code__.replace(co_name=f"{frame_step.__name__}_{name}")
    unit = FunctionType(code, frame_step.__globals__, code.co_name)
    options = _INDUCTOR if backend == "inductor" else None
    compiled: Unit = torch.compile(
        unit, fullgraph=True, dynamic=False, backend=backend, options=options
    )
    return compiled


def _lengths(step: FrameStep) -> Sequence[int]:
    return step.lengths[-1:] if kernels.usable(step.state.hidden) else step.lengths


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": ")
