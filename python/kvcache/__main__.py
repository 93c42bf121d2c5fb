"""``python -m kvcache``, the same as the ``kvcache`` command."""

import sys

from kvcache.cli import main

if __name__ == "__main__":
    sys.exit(main())
