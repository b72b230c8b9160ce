"""The entry point of a keeper: ``python -I -S -B __main__.py``, a file outside of any package."""

import os
import sys

if __name__ == "__main__":
    # As ``keeper`` the package works without ``plugins.coding_agents``, which would import the gateway.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    __import__("keeper.process", fromlist=["main"]).main()
