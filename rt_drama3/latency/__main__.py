"""``python -m latency SCENARIO`` is ``rt-drama3 bench SCENARIO``."""

from rt_drama3.cli_bench import main

main()
