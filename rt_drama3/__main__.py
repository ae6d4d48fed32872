"""``python -m rt_drama3`` is ``rt-drama3``."""

from rt_drama3.cli.main import main

main()
