"""The accuracy study: what low precision costs in AUC and saves in bytes, measured through the real server.

It trains with the code of `examples/dlrm.py`, so that what it measures is what the example does. Run it from `python/`:

    python -m accuracy --help
"""

import sys
from pathlib import Path

# The examples are scripts and not a package; this is the one place that knows where they are.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
