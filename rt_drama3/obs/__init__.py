"""Adds the server's speech to OBS Studio: sources are set up through obs-websocket."""

from rt_drama3.obs.client import ObsClient, ObsError
from rt_drama3.obs.sources import INPUTS, Change, remove, set_up

__all__ = ["INPUTS", "Change", "ObsClient", "ObsError", "remove", "set_up"]
