"""Service: the state that all routes of a server share.

It exists before the model is loaded, so that /health and /ready can answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rt_drama3.protocol import ModelFacts, Refused
from rt_drama3.server.access import Access
from rt_drama3.server.config import ServerConfig
from rt_drama3.server.drain import Drain
from rt_drama3.server.metrics import Metrics
from rt_drama3.server.monitor.broadcaster import make_broadcaster
from rt_drama3.server.openings import Model, Openings
from rt_drama3.server.references.voices import VoiceStore
from rt_drama3.server.workers import Workers
from rt_drama3.sinks import Sink

if TYPE_CHECKING:
    from rt_drama3.drama3 import Drama3
    from rt_drama3.engine.engine import Engine


class Service:
    """A server's shared state. Use it on one event loop; only ``attach`` is thread-safe.

    Args:
        config: settings.
        name: the model's name for clients.
        sink: used in place of the one that the settings name.

    Attributes:
        load_error: why the model could not be loaded.

    Raises:
        SinkError: this system has no sink of that kind.
    """

    def __init__(self, config: ServerConfig, name: str = "nano", sink: Sink | None = None) -> None:
        self.config = config
        self.limits = config.limits
        self.facts = ModelFacts(name)
        self.load_error: str | None = None
        self._model: Model | None = None
        self.metrics = Metrics(self._phases)
        self.voices = VoiceStore(config.folder / "voices", config.max_voices)
        self.broadcaster = make_broadcaster(config, sink, self.metrics.sink_cuts.inc)
        self.access = Access(config, self.metrics)
        self.drain = Drain(config.drain_seconds, self.broadcaster)
        self.workers = Workers()
        self.openings = Openings(config, self.voices, self.workers, self.metrics, self.check_ready)

    def attach(self, drama: Drama3, engine: Engine) -> None:
        """The model is loaded and warm."""
        codec = drama.codec.config
        self.facts = ModelFacts(
            self.facts.name, codec.sample_rate, codec.frame_samples, drama.config.num_codebooks
        )
        self.voices.adopt(drama)
        drama.steering.folder = self.config.folder / "steering"
        self._model = Model(drama, engine, self.facts)

    @property
    def ready(self) -> bool:
        """Whether speech can be requested."""
        model = self._model
        return model is not None and model.engine.wait_until_warm(0) and not self.drain.draining

    @property
    def failure(self) -> str | None:
        """Why this process cannot speak any more; None while it can, or is loading."""
        failure = None if self._model is None else self._model.engine.failure
        return self.load_error if failure is None else str(failure)

    def check_ready(self) -> Model:
        """Returns the model.

        Raises:
            Refused: ``not_ready`` or ``shutting_down``.
            DeviceError: the engine has failed.
        """
        if self.drain.draining:
            raise Refused("shutting_down", "the server is stopping.")
        if self._model is not None and (failure := self._model.engine.failure) is not None:
            raise failure
        if self._model is None or not self.ready:
            raise Refused("not_ready", self.load_error or "the model is still being loaded.")
        return self._model

    def tokens(self, text: str) -> int:
        """Tokens of a text, for OpenAI's usage figures."""
        return 0 if self._model is None else self._model.drama.prompts.text_tokens(text)

    def close(self) -> None:
        """Ends the service's threads."""
        self.workers.close()

    def _phases(self) -> Mapping[str, int]:
        return {} if self._model is None else self._model.engine.streams()
