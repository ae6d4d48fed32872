"""A disk that takes no more, by the limit that systems have on the size of files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

needs_limit = pytest.mark.skipif(resource is None, reason="needs a limit on the size of files")


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Lets no file of this process grow above a size in bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
