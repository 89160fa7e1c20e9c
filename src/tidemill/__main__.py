"""`python -m tidemill` is the `tidemill` command."""

import sys

from tidemill.cli.main import main

sys.exit(main())
