"""``python -m gateway``, which is the command ``trunkline``."""

from __future__ import annotations


def main() -> None:
    """Run the command line. Ctrl-C while it is imported ends it with 130, without a traceback."""
    try:
        from gateway.cli import app
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    app(prog_name="trunkline")


if __name__ == "__main__":
    main()
