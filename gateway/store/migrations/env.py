"""The script that Alembic runs: the migrations, on a given connection."""

from alembic import context

from gateway.store.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
