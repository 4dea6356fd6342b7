"""One file per command; each defines ``command``, a click command."""
