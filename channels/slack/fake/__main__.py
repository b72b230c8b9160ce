"""``python -m channels.slack.fake``."""

from channels.slack.fake.server import serve
from gateway.testing.fake_platform import main

if __name__ == "__main__":
    main(serve)
