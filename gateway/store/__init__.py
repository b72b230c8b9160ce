"""The store: one database, one writer thread, and a pool of readers.

Rows go in as writes that are committed together; typed entries, pages and steps come out of reads. The
session, access, models, delivery and pipeline packages and everything above them import it; it imports the
contract, and the channel registry for the outbox.
"""

from gateway.store.database import LockedDatabase, Store, open_locked
from gateway.store.engine import Durability
from gateway.store.writer import Fence, Inserted, Writer
from gateway.store.writes import Op

__all__ = ["Durability", "Fence", "Inserted", "LockedDatabase", "Op", "Store", "Writer", "open_locked"]
