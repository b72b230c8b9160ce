"""Entry point of ``python -m channels.telegram.fake``."""

from channels.telegram.fake.server import serve
from gateway.testing.fake_platform import main

if __name__ == "__main__":
    main(serve)
