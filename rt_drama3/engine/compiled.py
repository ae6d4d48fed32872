"""CompiledForms: the fastest form of step and decoder that works, now or once it is built.

On CUDA the step is compiled and captured when the engine starts. On a CPU, ahead-of-time packages
are built in the background and taken over later.
"""

from __future__ import annotations

import logging

from torch import Tensor

from rt_drama3.aot.builder import PackageBuilder
from rt_drama3.aot.codec import CompiledCodec
from rt_drama3.aot.packages import PackageLoadError
from rt_drama3.aot.step import CompiledStep
from rt_drama3.codec import Codec, CodecState
from rt_drama3.engine.config import EngineConfig
from rt_drama3.errors import ConfigError, DeviceError
from rt_drama3.graph_step import CapturedStep, FrameStep

log = logging.getLogger(__name__)


class CompiledForms:
    """See the module docstring.

    Args:
        step, codec: of the checkpoint.
        config: settings.

    Attributes:
        mode: of the step: eager, compile or cudagraph.
        builder: builds packages; None when there is nothing more to come.
        step_form, codec: the packages in use, if any.

    Raises:
        ConfigError: the step mode does not fit the machine.
        DeviceError: capture failed, and was asked for.
    """

    def __init__(self, step: FrameStep, codec: Codec, config: EngineConfig) -> None:
        self.mode = "eager"
        self.builder: PackageBuilder | None = None
        self.step_form: CompiledStep | None = None
        self.codec: CompiledCodec | None = None
        self._step, self._codec, self._config = step, codec, config
        self._choose()

    def decode(self, codes: Tensor, state: CodecState) -> Tensor:
        """Decodes the next frames of one stream; see ``Codec.decode_step`` (any thread)."""
        compiled = self.codec
        return (self._codec if compiled is None else compiled).decode_step(codes, state)

    def _choose(self) -> None:
        wanted = self._config.step_mode
        if wanted == "eager":
            return
        if self._step.model.device.type == "cuda":
            self._capture(wanted)
        elif wanted == "cudagraph":
            raise ConfigError("step_mode is cudagraph, but the model is on a CPU; use auto.")
        else:
            self._use_packages(wanted)

    def _capture(self, wanted: str) -> None:
        capture = wanted != "compile"
        try:
            self._step.use(CapturedStep(self._step, self._config.sizes, capture=capture))
        except DeviceError as error:
            if wanted != "auto":
                raise
            log.warning("continuing in eager mode: %s", error)
        else:
            self.mode = "cudagraph" if capture else "compile"

    def _use_packages(self, wanted: str) -> None:
        batches = [1]
        while 2 * batches[-1] <= self._config.codec_batch_frames:
            batches.append(2 * batches[-1])
        try:
            self.builder = PackageBuilder(
                self._step.model, self._codec, self._config.sizes, batches
            )
        except ConfigError as error:  # there is no cache folder
            if wanted != "auto":
                raise
            log.warning("continuing in eager mode: %s", error)
            return
        for _ in range(2):  # a package that does not load is rebuilt
            if wanted == "compile" and not self.builder.ready():
                self.builder.start()
                self.builder.wait()
            self.update(idle=True)
            if wanted != "compile" or self.step_form is not None or self.builder is None:
                break
        if wanted == "compile" and self.step_form is None:
            raise ConfigError("the compiled step does not load; use step mode eager or auto.")
        builder = self.builder
        if builder is not None:
            builder.start()
            if builder.obstacle:
                log.warning("continuing in eager mode: %s", builder.obstacle)
                self.builder = None

    def update(self, idle: bool) -> bool:
        """Loads compiled packages once they are built; the first step only between takes.

        A compiled decode equals the eager one up to rounding, and a compiled step of another batch
        size equals the one in use exactly, so these are added at any time.

        Args:
            idle: no take is in progress.

        Returns:
            Whether something new is compiled, to be warmed up.
        """
        builder = self.builder
        if builder is None:
            return False
        before = (self.step_form, self.codec)
        try:
            if self.step_form is None and idle and 1 in builder.steps():
                self.step_form = CompiledStep(self._step, builder.steps())
                self._step.use(self.step_form)
                self.mode = "compile"
            elif self.step_form is not None:
                for size in set(builder.steps()) - set(self.step_form.sizes):
                    self.step_form.add(size)
            if self.codec is None and idle and 1 in builder.codecs():
                self.codec = CompiledCodec(self._codec, builder.codecs())
            elif self.codec is not None:
                for size in set(builder.codecs()) - set(self.codec.sizes):
                    self.codec.add(size)
        except PackageLoadError as error:
            if builder.rebuild(error):
                log.warning("%s; rebuilding", error)
                return (self.step_form, self.codec) != before
            failure: str | None = str(error)
        except RuntimeError as error:
            failure = f"a package does not load: {error}"
        else:
            failure = builder.failure()
        if failure:
            log.warning("continuing in %s mode: %s", self.mode, failure)
            self.builder = None
        elif builder.ready() and self.step_form is not None and self.codec is not None:
            self.builder = None
        return (self.step_form, self.codec) != before
