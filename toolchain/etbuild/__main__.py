"""`python -m etbuild`."""

import sys

from etbuild.cli import main

sys.exit(main())
