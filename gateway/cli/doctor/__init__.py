"""The checks of ``trunkline doctor``; ``config check``, ``run`` and ``channels status`` use some of them."""
