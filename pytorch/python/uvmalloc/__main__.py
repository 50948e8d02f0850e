"""`python -m uvmalloc`."""

import sys

from uvmalloc._cli.main import main

sys.exit(main())
