"""Exit codes. 1 is always a verdict, never an accident."""

EXIT_PASSED = 0
EXIT_FAILED = 1
EXIT_NO_VERDICT = 2
EXIT_INTERRUPTED = 130
