"""``python -m ioprobe_cli``."""

from ioprobe_cli.main import main

if __name__ == "__main__":
    main()
