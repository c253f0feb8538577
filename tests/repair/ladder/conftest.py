"""The toy exposures lie beside the tests of the other repairs."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent))
