"""`python -m codetr`, the same as the command `codetr`."""

import sys

from codetr.cli.detect import main

sys.exit(main())
