"""`python -m uvmalloc`."""

import sys

from uvmalloc.cli import main

sys.exit(main())
