"""``trunkline plugin``: find, install, approve, enable, describe, check and pack plugins."""
