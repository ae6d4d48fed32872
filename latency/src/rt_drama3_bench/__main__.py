"""``python -m rt_drama3_bench`` is ``rt-drama3-bench``."""

from rt_drama3_bench.cli import main

main()
