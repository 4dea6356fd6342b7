"""What travels into the job by environment. Stands on the standard library alone until the job itself imports torch."""
