"""``python -m gateway``, which is the command ``trunkline``."""

from __future__ import annotations


def main() -> None:
    """Run the command line."""
    from gateway.cli import app

    app(prog_name="trunkline")


if __name__ == "__main__":
    main()
