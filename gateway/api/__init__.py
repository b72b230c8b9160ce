"""The names for plugins that have HTTP routes or metrics, or change files.

In: the contract. Out: these names; ``extensions`` checks what plugins return, and ``server`` uses it. Plugins
import this module.
"""

from gateway.api.beneath import FOLDER, open_below
from gateway.contract.plugin import ApiCall, ApiRoute, Figure
from gateway.contract.tool import FileChange

__all__ = ["FOLDER", "ApiCall", "ApiRoute", "Figure", "FileChange", "open_below"]
