"""TFRecord: framed, checksummed records that hold ``tf.train.Example`` messages.

Frame: length u64, masked CRC-32C of the length u32, data, masked CRC-32C of the
data u32; all little-endian. The message's three feature kinds are parsed here,
so that neither TensorFlow nor protobuf is needed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import numpy as np

from ioprobe.data.crc32c import masked
from ioprobe.data.encode import encode_field
from ioprobe.data.formats import WriteOptions
from ioprobe.data.shards import Sample, Shard, reader_at, reading
from ioprobe.errors import DataError

COMPRESSIONS = ("gzip",)
_HEAD = struct.Struct("<QI")
_TAIL = struct.Struct("<I")


def suffix(options: WriteOptions) -> str:
    """Return ``.tfrecord`` or ``.tfrecord.gz``."""
    return ".tfrecord.gz" if options.compression else ".tfrecord"


def read_samples(shard: Shard) -> Iterator[Sample]:
    """Yield records: ``{"__key__": "3", "example": bytes}``.

    Raises:
        DataError: empty, cut short, or a checksum differs; names shard and offset.
    """
    number = -1
    with reading(shard), shard.open_decompressed() as file:
        for number, data in enumerate(read_records(file, shard.name)):
            yield {"__key__": str(number), "example": data}
    if number < 0:
        raise DataError(f"shard '{shard.name}' is empty", hint="write it again, or leave it out")


def read_records(file: BinaryIO, shard_name: str) -> Iterator[bytes]:
    """Yield the data of each record, both checksums verified."""
    offset = 0
    while head := file.read(_HEAD.size):
        length = _length(head, offset, shard_name)
        body = file.read(length + _TAIL.size)
        if len(body) < length + _TAIL.size:
            raise _cut_short(shard_name, offset)
        data = body[:length]
        if masked(data) != _TAIL.unpack_from(body, length)[0]:
            raise DataError(
                f"shard '{shard_name}' is damaged: the checksum of the record at byte {offset} differs",
                hint="write or download it again",
            )
        yield data
        offset += _HEAD.size + length + _TAIL.size


def _length(head: bytes, offset: int, shard_name: str) -> int:
    if len(head) < _HEAD.size:
        raise _cut_short(shard_name, offset)
    length, crc = _HEAD.unpack(head)
    if masked(head[:8]) != crc:
        raise DataError(
            f"shard '{shard_name}' is damaged: the checksum of the record length at byte {offset} differs",
            hint="write or download it again; if it is compressed, name it .tfrecord.gz",
        )
    return int(length)


def _cut_short(shard_name: str, offset: int) -> DataError:
    return DataError(
        f"shard '{shard_name}' is cut short: the record at byte {offset} is incomplete",
        hint="write or download it again",
    )


def count_samples(shard: Shard) -> int | None:
    """Return the records of a plain local shard by their lengths; None where the data would have to be read."""
    if shard.compression is not None or shard.path is None:
        return None
    count = offset = 0
    with reading(shard), shard.open() as file:
        total, read_at = file.seek(0, 2), reader_at(shard, file)
        while offset < total:
            offset += _HEAD.size + _length(read_at(offset, _HEAD.size), offset, shard.name) + _TAIL.size
            count += 1
        if offset > total:
            raise _cut_short(shard.name, offset)
    return count


def decode_fields(sample: Sample) -> Sample:
    """Return the features of the record's Example; a feature of one value is that value."""
    return {"__key__": sample["__key__"], **decode_example(sample["example"])}


def decode_example(data: bytes) -> dict[str, Any]:
    """Return name -> bytes, int, float or array of a serialized ``tf.train.Example``.

    Raises:
        DataError: the bytes are no such message.
    """
    found: dict[str, Any] = {}
    try:
        for _, features in _fields(memoryview(data)):
            for _, entry in _fields(features):
                parts = dict(_fields(entry))
                found[bytes(parts[1]).decode()] = _decode_feature(parts.get(2, memoryview(b"")))
    except (IndexError, KeyError, TypeError, ValueError, struct.error) as error:
        raise DataError(f"a record is no tf.train.Example: {error}", hint="only Example records are decoded") from None
    return found


def _fields(view: memoryview) -> Iterator[tuple[int, Any]]:
    """Yield field number and value (memory for length-delimited, int for varint) of a protobuf message."""
    place, end = 0, len(view)
    while place < end:
        tag, place = _varint(view, place)
        wire = tag & 7
        if wire == 2:
            length, place = _varint(view, place)
            if place + length > end:
                raise ValueError("a field is longer than its message")
            yield tag >> 3, view[place : place + length]
            place += length
        elif wire == 0:
            number, place = _varint(view, place)
            yield tag >> 3, number
        elif wire == 5:
            yield tag >> 3, view[place : place + 4]
            place += 4
        else:
            raise ValueError(f"wire type {wire} is not used by Example")


def _varint(view: memoryview, place: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = view[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, place
        shift += 7


def _decode_feature(view: memoryview) -> Any:
    for kind, values in _fields(view):
        if kind == 1:
            blobs = [bytes(v) for _, v in _fields(values)]
            return blobs[0] if len(blobs) == 1 else blobs
        if kind == 2:
            packed = b"".join(bytes(v) for _, v in _fields(values))
            floats = np.frombuffer(packed, "<f4")
            return float(floats[0]) if floats.size == 1 else floats
        numbers: list[int] = []
        for _, value in _fields(values):
            if isinstance(value, int):
                numbers.append(value)
            else:
                numbers += _decode_packed(value)
        signed = np.array(numbers, np.uint64).astype(np.int64)
        return int(signed[0]) if signed.size == 1 else signed
    return b""


def _decode_packed(view: memoryview) -> list[int]:
    """Return the varints in a packed field; one vectorized pass, for token lists are long."""
    raw = np.frombuffer(view, np.uint8)
    ends = np.flatnonzero(raw < 0x80)
    if ends.size == 0 or ends[-1] != raw.size - 1:
        raise ValueError("a packed number is cut short")
    starts = np.concatenate([[0], ends[:-1] + 1])
    group = np.repeat(np.arange(ends.size), ends - starts + 1)
    shift = 7 * (np.arange(raw.size) - starts[group])
    parts = (raw & 0x7F).astype(np.uint64) << shift.astype(np.uint64)
    numbers: list[int] = np.bitwise_or.reduceat(parts, starts).tolist()
    return numbers


def write_shard(file: BinaryIO, samples: Iterable[Sample], options: WriteOptions) -> None:
    """Write samples as Example records; bytes as bytes_list, numbers and tokens as int64_list."""
    for sample in samples:
        data = encode_example(sample)
        head = struct.pack("<Q", len(data))
        file.write(b"".join((head, _TAIL.pack(masked(head)), data, _TAIL.pack(masked(data)))))


def encode_example(sample: Sample) -> bytes:
    """Return a sample as a serialized ``tf.train.Example``, features sorted by name."""
    entries = []
    for name, value in sorted(sample.items()):
        if name == "__key__":
            continue
        if isinstance(value, int):
            feature = _delimited(3, _delimited(1, _pack_varints(np.array([value]))))
        elif isinstance(value, np.ndarray) and name == "tokens":
            feature = _delimited(3, _delimited(1, _pack_varints(value)))
        else:
            feature = _delimited(1, _delimited(1, b"".join(encode_field(value))))
        entries.append(_delimited(1, _delimited(1, name.encode()) + _delimited(2, feature)))
    return _delimited(1, b"".join(entries))


def _delimited(number: int, payload: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _pack_varints(np.array([len(payload)])) + payload


def _pack_varints(numbers: np.ndarray[Any, Any]) -> bytes:
    """Return numbers as varints, one after the other."""
    values = numbers.astype(np.int64).astype(np.uint64)
    columns = []
    for k in range(10):
        low = (values >> np.uint64(7 * k)) & np.uint64(0x7F)
        rest = values >> np.uint64(7 * (k + 1)) if k < 9 else np.zeros_like(values)
        used = (values >> np.uint64(7 * k) > 0) if k else np.ones(values.size, bool)
        columns.append((np.where(rest > 0, low | np.uint64(0x80), low).astype(np.uint8), used))
        if not rest.any():
            break
    table = np.stack([c for c, _ in columns], axis=1)
    mask = np.stack([u for _, u in columns], axis=1)
    packed: bytes = table[mask].tobytes()
    return packed
