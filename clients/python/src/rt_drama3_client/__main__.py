"""``python -m rt_drama3_client``."""

import sys

from rt_drama3_client.cli import main

sys.exit(main())
