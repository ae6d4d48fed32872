"""The latency harness by its short name, in a clone of the repository: ``python -m latency``.

It lives in ``rt_drama3.latency``, so that an installed wheel has it too (``rt-drama3 bench``).
"""

from rt_drama3 import latency

__path__ = latency.__path__
