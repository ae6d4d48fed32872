"""The Drama 3 language model: hybrid backbone, codebook tower and their explicit state."""

from rt_drama3.model.backbone import LayerHook
from rt_drama3.model.speech_model import SpeechModel
from rt_drama3.model.state import Snapshot, StreamState

__all__ = ["LayerHook", "Snapshot", "SpeechModel", "StreamState"]
