"""The script that Alembic runs: the migrations, on a given connection."""

import structlog
from alembic import context
from sqlalchemy.exc import DatabaseError

from gateway.contract.errors import StoreError
from gateway.store.engine import is_temporary
from gateway.store.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
# Of a large database it takes minutes, in which the gateway answers nothing.
structlog.get_logger("trunkline").info("migrating the database; an interrupted migration changes nothing")
try:
    with context.begin_transaction():
        context.run_migrations()
except DatabaseError as error:
    if is_temporary(error):
        raise
    reason = str(error.orig).strip().split("\n")[0]
    raise StoreError(
        f"the migration of the database failed: {reason}; the database is as it was, so the version before "
        "can go on: run that one, and report this"
    ) from error
