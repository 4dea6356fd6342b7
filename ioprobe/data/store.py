"""Where shards are written: a folder (atomic, durable) or an object store (whole-object put)."""

from __future__ import annotations

import errno
import gzip
import io
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from ioprobe.data.shards import first_line, local_path, readable, zstandard
from ioprobe.errors import IoprobeError, OutputError
from ioprobe.secrets import redact_url, scrub

TEMPORARY = ".tmp-"
_GATHER_BYTES = 4 << 20
_GATHER_PARTS = 512  # IOV_MAX is 1024

Fill = Callable[[BinaryIO], None]


class GatherWriter(io.RawIOBase):
    """A file whose small and large writes go out together through ``writev``, without a copy.

    Python's buffered writer would split header, data and padding of each sample
    into several calls, and copy what it buffers. Parts must stay unchanged until flushed.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        self._parts: list[memoryview] = []
        self._pending = 0

    def fileno(self) -> int:
        return self._descriptor

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if view:
            self._parts.append(view)
            self._pending += len(view)
            if self._pending >= _GATHER_BYTES or len(self._parts) >= _GATHER_PARTS:
                self.flush()
        return len(view)

    def flush(self) -> None:
        parts, self._parts, self._pending = self._parts, [], 0
        while parts:
            written = os.writev(self._descriptor, parts)
            while parts and written >= len(parts[0]):
                written -= len(parts.pop(0))
            if written:
                parts[0] = parts[0][written:]

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self.flush()
        return os.lseek(self._descriptor, offset, whence)

    def tell(self) -> int:
        return os.lseek(self._descriptor, 0, os.SEEK_CUR) + self._pending

    def truncate(self, size: int | None = None) -> int:
        self.flush()
        size = self.tell() if size is None else size
        os.ftruncate(self._descriptor, size)
        return size

    def readinto(self, buffer: Any) -> int:
        self.flush()
        return os.readv(self._descriptor, [buffer])

    def close(self) -> None:
        if not self.closed:
            try:
                self.flush()
            finally:
                self._parts = []
                os.close(self._descriptor)
                super().close()


class Store(Protocol):
    """Where a dataset is written."""

    name: str
    """For messages."""
    shared: bool
    """Whether other processes of this machine see what one wrote."""

    def entries(self) -> dict[str, int]:
        """Return the files by name relative to the target, with sizes [bytes]; temporary ones left out."""
        ...

    def put(self, name: str, fill: Fill, *, stable: bool = False) -> int:
        """Write one file whole or not at all; return its size [bytes].

        ``stable`` says that every buffer written stays unchanged until the file is closed.
        """
        ...

    def put_folder(self, name: str, files: Mapping[str, bytes]) -> int:
        """Write a folder of files whole or not at all; return its size [bytes]."""
        ...

    def read(self, name: str) -> bytes | None:
        """Return a small file, or None where it is missing."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file or folder that exists."""
        ...

    def clean(self) -> None:
        """Remove what an earlier, killed writer left under temporary names."""
        ...


@contextmanager
def compressing(file: BinaryIO, codec: str | None) -> Iterator[BinaryIO]:
    """Give a file to write to whose content is compressed as a whole; None passes it through."""
    if codec is None:
        yield file
    elif codec == "gzip":
        # No name and no time in the header: equal content, equal bytes.
        with gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0) as out:
            yield cast(BinaryIO, out)
    else:
        with zstandard().ZstdCompressor(level=3).stream_writer(file, closefd=False) as out:
            yield out


def open_store(url: str, storage_options: Mapping[str, Any] | None = None) -> Store:
    """Return the store of a target URL."""
    path = local_path(url)
    return FolderStore(path) if path is not None else ObjectStore(url, dict(storage_options or {}))


class FolderStore:
    """A folder on a file system."""

    shared = True

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.name = path

    def _fail(self, name: str, error: OSError) -> OutputError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return OutputError(
                f"cannot write '{self.path / name}': {os.strerror(error.errno).lower()}",
                hint="free some space or choose another place",
            )
        return OutputError(
            f"cannot write '{self.path / name}': {error.strerror or error}", hint="choose another place to write to"
        )

    def entries(self) -> dict[str, int]:
        found: dict[str, int] = {}
        try:
            for path in sorted(self.path.rglob("*")):
                relative = path.relative_to(self.path)
                if path.is_file() and not relative.parts[0].startswith(TEMPORARY):
                    found[str(relative)] = path.stat().st_size
        except NotADirectoryError as error:
            raise self._fail("", error) from None
        if self.path.is_file():
            raise OutputError(f"cannot write to '{self.path}': it is a file", hint="name a folder")
        return found

    def put(self, name: str, fill: Fill, *, stable: bool = False) -> int:
        temporary = self.path / f"{TEMPORARY}{os.getpid()}-{name}"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            place = str(temporary)
            with GatherWriter(place) if stable else open(place, "w+b", buffering=1 << 20) as file:
                fill(cast(BinaryIO, file))
                file.flush()
                os.fsync(file.fileno())
                size = os.fstat(file.fileno()).st_size
            temporary.replace(self.path / name)
            self._sync_folder(self.path)
        except BaseException as error:
            temporary.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise self._fail(name, error) from None
            raise
        return size

    def put_folder(self, name: str, files: Mapping[str, bytes]) -> int:
        temporary = self.path / f"{TEMPORARY}{os.getpid()}-{name}"
        try:
            temporary.mkdir(parents=True, exist_ok=True)
            for inner, data in files.items():
                (temporary / inner).write_bytes(data)
            # Data first, then all fsyncs: the first one commits most of the journal for the others.
            for inner in files:
                self._sync_folder(temporary / inner)
            self._sync_folder(temporary)
            temporary.replace(self.path / name)
            self._sync_folder(self.path)
        except BaseException as error:
            shutil.rmtree(temporary, ignore_errors=True)
            if isinstance(error, OSError):
                raise self._fail(name, error) from None
            raise
        return sum(len(d) for d in files.values())

    @staticmethod
    def _sync_folder(path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno != errno.EINVAL:  # some network file systems cannot sync a folder
                raise
        finally:
            os.close(descriptor)

    def read(self, name: str) -> bytes | None:
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._fail(name, error) from None

    def remove(self, name: str) -> None:
        path = self.path / name
        try:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        except OSError as error:
            raise self._fail(name, error) from None

    def clean(self) -> None:
        for path in self.path.glob(f"{TEMPORARY}*"):
            self.remove(path.name)


class ObjectStore:
    """A prefix in an object store; an object appears whole when its put ends."""

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        self.url, self._options = url, options
        self.name = redact_url(url)
        self.shared = not url.startswith("memory://")

    def _connect(self) -> tuple[Any, str]:
        import fsspec

        with readable(self.name):
            fs, path = fsspec.core.url_to_fs(self.url, **self._options)
            return fs, path.rstrip("/")

    def _fail(self, name: str, error: Exception) -> OutputError:
        return OutputError(
            f"cannot write '{self.name.rstrip('/')}/{name}': {scrub(first_line(error))}",
            hint="check bucket and credentials",
        )

    def entries(self) -> dict[str, int]:
        fs, path = self._connect()
        with readable(self.name):
            if not fs.exists(path):
                return {}
            found = fs.find(path, detail=True)
        return {p[len(path) + 1 :]: i.get("size") or 0 for p, i in found.items()}

    def put(self, name: str, fill: Fill, *, stable: bool = False) -> int:
        buffer = io.BytesIO()
        fill(buffer)
        data = buffer.getvalue()
        fs, path = self._connect()
        try:
            fs.pipe_file(f"{path}/{name}", data)
        except IoprobeError:
            raise
        except Exception as error:  # each client has its own error tree
            raise self._fail(name, error) from None
        return len(data)

    def put_folder(self, name: str, files: Mapping[str, bytes]) -> int:
        for inner, data in files.items():
            self.put(f"{name}/{inner}", lambda file, data=data: file.write(data))  # type: ignore[misc]
        # A store has no rename of prefixes: a last, empty object marks the folder as whole.
        self.put(f"{name}/.complete", lambda file: None)
        return sum(len(d) for d in files.values())

    def read(self, name: str) -> bytes | None:
        fs, path = self._connect()
        try:
            data: bytes = fs.cat_file(f"{path}/{name}")
        except FileNotFoundError:
            return None
        except Exception as error:
            raise self._fail(name, error) from None
        return data

    def remove(self, name: str) -> None:
        fs, path = self._connect()
        fs.rm(f"{path}/{name}", recursive=True)

    def clean(self) -> None:
        """Nothing to do: a put that did not end left no object."""
