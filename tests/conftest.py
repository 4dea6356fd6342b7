"""What every test may rely on."""

from __future__ import annotations

import signal

from object_servers import bucket, http_store, s3_port  # noqa: F401 - fixtures of several files
from planted_traces import generate  # noqa: F401
from storage_jobs import file  # noqa: F401

# A suite that a script started in the background inherits an ignored SIGINT, and so would the commands under test.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Likewise SIGHUP under nohup.
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
