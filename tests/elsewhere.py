"""The small checkpoint, served by a process of its own: for measurements of clients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from prometheus_client.parser import text_string_to_metric_families

from rt_drama3_bench.server_process import ServerProcess
from tests.small import WAIT, small_directory, until


class Elsewhere:
    """A server in another process.

    Args:
        url: of it.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._http = httpx.Client(base_url=url, timeout=WAIT, trust_env=False)

    def close(self) -> None:
        self._http.close()

    def metric(self, name: str, **labels: str) -> float:
        """A metric's samples that have these labels, summed up."""
        families = text_string_to_metric_families(self._http.get("/metrics").text)
        samples = (sample for family in families for sample in family.samples)
        return sum(
            sample.value
            for sample in samples
            if sample.name == f"rt_drama3_{name}" and labels.items() <= sample.labels.items()
        )

    def until_free(self) -> None:
        """Waits until the engine has no stream left."""
        until(lambda: self.metric("streams") == 0, "freeing the streams")


@contextmanager
def elsewhere() -> Iterator[Elsewhere]:
    """Starts such a server, eager and on one thread, and stops it."""
    model = str(small_directory())
    with ServerProcess(model, "eager", arguments=("--threads", "1")) as served:
        place = Elsewhere(served.url)
        try:
            yield place
        finally:
            place.close()
