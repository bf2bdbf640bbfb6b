"""A process that takes the publishing right and keeps it until it is killed."""

import sys
from pathlib import Path

from tensorfusion_dra.state.publisher_lease import PublisherLease

right = PublisherLease(Path(sys.argv[1]))
right.take()
sys.stdout.write("taken\n")
sys.stdout.flush()
sys.stdin.read()
