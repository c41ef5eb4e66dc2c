"""`ringroad bench`: stands as __main__.py in the folder that has the package, which python3 is given."""

import sys

from integration.bench.__main__ import main

sys.exit(main())
