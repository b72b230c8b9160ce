"""``python -m channels.discord.fake``."""

from channels.discord.fake.server import serve
from gateway.testing.fake_platform import main

if __name__ == "__main__":
    main(serve)
