"""The modules of the storm import each other by their names alone, as a script's do."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
