"""Path of the storm's modules, which import each other by bare names, as scripts do."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
