"""``python -m rt_drama3_bench SCENARIO`` is ``rt-drama3 bench SCENARIO``."""

from rt_drama3.cli.bench import main

main()
