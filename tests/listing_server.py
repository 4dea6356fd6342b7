"""An S3 store on loopback that holds nothing but keys, as many as asked for; tests and benchmarks load it by path."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

FOLDER = "ds/"
OBJECT_BYTES = 2
_ENTRY = (
    "<Contents><Key>ds/{:08d}.tar</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
    "<ETag>&quot;d41d8cd98f00b204e9800998ecf8427e&quot;</ETag><Size>2</Size>"
    "<StorageClass>STANDARD</StorageClass></Contents>"
)
_PAGE = (
    '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
    "<Name>b</Name><Prefix>{prefix}</Prefix><KeyCount>{count}</KeyCount><MaxKeys>1000</MaxKeys>"
    "<IsTruncated>{more}</IsTruncated>{token}{entries}</ListBucketResult>"
)


class ListingServer(http.server.ThreadingHTTPServer):
    """Answers ListObjectsV2 of one bucket ``b``, where every key lies in one folder; signatures are not checked."""

    daemon_threads = True

    def __init__(self, keys: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.keys = keys
        self.pages = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def page(self, prefix: str, first: int, most: int) -> str:
        """Return the page that begins with a key."""
        self.pages += 1
        keys = self.keys if FOLDER.startswith(prefix) else 0
        last = min(keys, first + most)
        more = last < keys
        return _PAGE.format(
            prefix=prefix,
            count=last - first,
            more=str(more).lower(),
            token=f"<NextContinuationToken>{last}</NextContinuationToken>" if more else "",
            entries="".join(map(_ENTRY.format, range(first, last))),
        )


class _Handler(http.server.BaseHTTPRequestHandler):
    server: ListingServer
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 20

    def do_GET(self) -> None:
        query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        if "list-type" not in query:
            return self._send(404, "")
        first = int(query.get("continuation-token", 0))
        most = min(1000, int(query.get("max-keys", 1000)))
        return self._send(200, self.server.page(query.get("prefix", ""), first, most))

    def do_HEAD(self) -> None:
        self._send(404, "")

    def _send(self, status: int, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - the base class's name
        """Say nothing."""


@contextlib.contextmanager
def listing(keys: int) -> Iterator[ListingServer]:
    """Serve until the end."""
    with ListingServer(keys) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()
