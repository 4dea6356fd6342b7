"""Jobs that already run: launch under hooks, py-spy stacks, recorded traces."""
