"""A shard: one file or object of a dataset, opened wherever it lives."""

from __future__ import annotations

import errno
import gzip
import io
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast
from urllib.parse import urlsplit

from ioprobe.errors import DataError, IoprobeError, StoreError, TargetError
from ioprobe.secrets import redact_url, scrub

Sample = dict[str, Any]
"""One training example as it is stored: field name -> bytes, number, text or array; ``__key__`` names it."""

COMPRESSED = {".gz": "gzip", ".tgz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
"""Suffix of a file compressed as a whole -> codec."""


def local_path(url: str) -> str | None:
    """Return the path of a URL on a local file system, or None for a remote one.

    >>> local_path("file:///data/x.tar"), local_path("data/x.tar"), local_path("s3://b/x.tar")
    ('/data/x.tar', 'data/x.tar', None)
    """
    if url.startswith("file://"):
        return url[7:]
    return None if "://" in url else url


@dataclass(frozen=True)
class Shard:
    """One file or object of a dataset."""

    url: str
    """Path or URL; may hold credentials, so messages use ``name``."""
    size_bytes: int | None = None
    """As listed; None where the store did not tell."""
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """For the fsspec file system; never shown."""

    @property
    def name(self) -> str:
        """The URL as it may be shown."""
        return redact_url(self.url)

    @property
    def path(self) -> str | None:
        """Path on a local file system, or None."""
        return local_path(self.url)

    @property
    def compression(self) -> str | None:
        """Codec of the whole file by its suffix: ``gzip``, ``zstd`` or None."""
        stem = urlsplit(self.url).path if "://" in self.url else self.url
        return next((codec for suffix, codec in COMPRESSED.items() if stem.endswith(suffix)), None)

    def open(self) -> BinaryIO:
        """Open the stored bytes (still compressed, where they are).

        Raises:
            TargetError: it is missing or may not be read.
            StoreError: the store failed.
        """
        with readable(self.name):
            if self.path is not None:
                return open(self.path, "rb", buffering=1 << 20)
            import fsspec

            file = fsspec.open(self.url, "rb", **self.storage_options).open()
            return cast(BinaryIO, file)

    def open_decompressed(self) -> BinaryIO:
        """Open the content, decompressed by the file's suffix."""
        file = self.open()
        if self.compression == "gzip":
            # GzipFile closes only files that it opened itself, so the owner is attached.
            return cast(BinaryIO, _Owning(gzip.GzipFile(fileobj=file, mode="rb"), file))
        if self.compression == "zstd":
            reader = zstandard().ZstdDecompressor().stream_reader(file, read_across_frames=True, closefd=True)
            return cast(BinaryIO, io.BufferedReader(reader, buffer_size=1 << 20))
        return file


class _Owning(io.BufferedReader):
    """A buffered decompressing reader that also closes the file under it."""

    def __init__(self, raw: Any, under: BinaryIO) -> None:
        super().__init__(raw, buffer_size=1 << 20)
        self._under = under

    def close(self) -> None:
        super().close()
        self._under.close()


def zstandard() -> Any:
    """Return the zstandard module.

    Raises:
        TargetError: it is not installed; the hint names the extra.
    """
    return extra("zstandard", "zstd", "zstd compression")


def extra(module: str, name: str, what: str) -> Any:
    """Import an optional package.

    Raises:
        TargetError: it is not installed; the hint names the extra of ioprobe that brings it.
    """
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = error.name or module.partition(".")[0]
        raise TargetError(
            f"{what} needs the package '{missing}', which is not installed",
            hint=f"pip install 'ioprobe[{name}]'",
        ) from None


def reader_at(shard: Shard, file: BinaryIO) -> Callable[[int, int], bytes]:
    """Return a function (offset, length) -> bytes for headers that lie far apart in an open shard.

    A local file is read past its buffer and without read-ahead, which would fetch what lies between.
    """
    if shard.path is None:

        def seek_and_read(offset: int, length: int) -> bytes:
            file.seek(offset)
            return file.read(length)

        return seek_and_read
    fd = file.fileno()
    with suppress(OSError):  # advice only
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    return lambda offset, length: os.pread(fd, length, offset)


@contextmanager
def readable(name: str) -> Iterator[None]:
    """Turn the faults of opening or listing into one clear line that names the place."""
    try:
        yield
    except FileNotFoundError:
        raise TargetError(f"cannot read '{name}': no such file or object", hint="check the path or URL") from None
    except PermissionError as error:
        why = error.strerror or "permission denied"
        raise TargetError(f"cannot read '{name}': {why}", hint="check its rights or your credentials") from None
    except IsADirectoryError:
        raise TargetError(f"cannot read '{name}': it is a folder", hint="pass the files in it") from None
    except ImportError as error:
        scheme = name.partition("://")[0]
        package = f" '{error.name}'" if error.name else ""
        raise TargetError(
            f"cannot read '{name}': the package{package} for {scheme}:// is not installed",
            hint=f"pip install 'ioprobe[{_EXTRAS.get(scheme, 's3')}]'",
        ) from None
    except IoprobeError:
        raise
    except OSError as error:
        raise _store_error(name, error) from None
    except ValueError as error:  # a name with a zero byte, or with half a surrogate pair
        if "://" in name:
            raise _store_error(name, error) from None
        raise TargetError(f"cannot read '{name}': {first_line(error)}", hint="check the path or URL") from None
    except Exception as error:
        # Each object-store client has its own error tree; none derives from OSError.
        if "://" not in name:
            raise
        raise _store_error(name, error) from None


def _store_error(name: str, error: BaseException) -> StoreError:
    return StoreError(
        f"cannot read '{name}': {scrub(first_line(error))}",
        hint="check that the store answers and that your credentials are right, and try again",
    )


_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure"}


@contextmanager
def reading(shard: Shard, where: str = "") -> Iterator[None]:
    """Turn low-level faults of damaged or vanishing data into a DataError that names the shard."""
    place = f"'{shard.name}'" + (f" {where}" if where else "")
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"cannot read {place}: {first_line(error)}", hint="the file is damaged or cut short; write it again"
        ) from None
    except OSError as error:
        if error.errno == errno.EIO:
            raise StoreError(f"cannot read {place}: input/output error", hint="check the disk") from None
        if shard.path is None:
            raise _store_error(shard.name, error) from None
        raise DataError(f"cannot read {place}: {first_line(error)}", hint="the file may be damaged") from None
    except IoprobeError:
        raise
    except Exception as error:
        if shard.path is not None:
            raise
        raise _store_error(shard.name, error) from None


def first_line(error: BaseException) -> str:
    """Return an exception's text as one line, for a message.

    >>> first_line(ValueError("a\\nb")), first_line(KeyError())
    ('a', 'KeyError')
    """
    text = getattr(error, "strerror", None) or str(error)
    lines = str(text).strip().splitlines()
    return lines[0] if lines else type(error).__name__
