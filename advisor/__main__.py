"""``python -m advisor`` is ``momadvise``: for an environment whose scripts are not on the path."""

import sys

from advisor.cli import main

if __name__ == "__main__":
    sys.exit(main())
