"""``python -m tensorfusion_dra``."""

import sys

from tensorfusion_dra import cli

if __name__ == "__main__":
    sys.exit(cli.main())
