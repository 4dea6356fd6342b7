"""Stored bytes to tensors, the way people do it: Pillow for images, numpy for arrays and audio.

What a field holds is told by its first bytes, so that any dataset's field names
will do. Nothing here runs code from the data: pickles stay bytes.
"""

from __future__ import annotations

import io
import struct
import warnings
from typing import Any

import numpy as np

from ioprobe.data.shards import Sample, first_line
from ioprobe.errors import DataError

_IMAGES = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"BM", b"GIF8")
_TEXTS = {"txt", "text", "caption", "json"}


def decode_sample(sample: Sample, *, image_size: int | None = 224, where: str = "") -> Sample:
    """Return the sample with its fields decoded.

    Images become uint8 arrays of shape (3, image_size, image_size); ``.npy``
    becomes its array; WAV becomes float32 in [-1, 1], shape (frames,); short
    ASCII numbers become ints, token arrays int64. What is unknown stays bytes.

    Args:
        sample: Field name -> stored value.
        image_size: Side of the square crop [pixels]; None keeps each image's size.
        where: Shard, for messages.

    Raises:
        DataError: a field is damaged; names shard, sample and field.
    """
    decoded: Sample = {}
    for name, value in sample.items():
        if name.startswith("__"):
            decoded[name] = value
            continue
        try:
            decoded[name] = decode_field(name, value, image_size)
        except (OSError, ValueError, SyntaxError, EOFError, OverflowError, MemoryError, struct.error) as error:
            place = f" of '{where}'" if where else ""
            key = sample.get("__key__", sample.get("key", "?"))
            raise DataError(
                f"cannot decode '{name}' of sample '{key}'{place}: {first_line(error)}",
                hint="the sample is damaged; mend it or leave it out",
            ) from None
    return decoded


def decode_field(name: str, value: Any, image_size: int | None) -> Any:
    """Return one field decoded; see :func:`decode_sample`."""
    if isinstance(value, dict) and "bytes" in value:  # Hugging Face's image struct
        value = value["bytes"]
    if isinstance(value, np.ndarray):
        if value.dtype == np.uint8 and value.ndim == 1 and value[:3].tobytes() == _IMAGES[0]:
            return decode_image(value.tobytes(), image_size)
        return decode_array(value)
    if isinstance(value, np.integer):
        return int(value)
    if not isinstance(value, (bytes, memoryview)):
        return value
    head = bytes(value[:12])
    if head.startswith(_IMAGES) or (head[:4] == b"RIFF" and head[8:12] == b"WEBP"):
        return decode_image(value, image_size)
    if head.startswith(b"\x93NUMPY"):
        return decode_array(np.load(io.BytesIO(value), allow_pickle=False))
    if head[:4] == b"RIFF" and head[8:12] == b"WAVE":
        return decode_wav(value)
    if name.rpartition(".")[2] in {"cls", "cls2", "index", "inx", "id", "label"} and len(value) < 20:
        text = bytes(value).strip()
        if text.lstrip(b"-").isdigit():
            return int(text)
    if name.rpartition(".")[2] in {"jpg", "jpeg", "png", "webp"}:
        raise ValueError("it is no image")
    if name.rpartition(".")[2] in _TEXTS:
        return bytes(value).decode()
    return bytes(value)


def decode_image(data: bytes | memoryview, size: int | None) -> Any:
    """Return an image as uint8, shape (3, height, width), as evaluation pipelines do it.

    The whole image to RGB, shorter side to 256/224 of ``size``, centre crop.

    Raises:
        ValueError, OSError: the image is damaged or cut short.
    """
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # e.g. corrupt EXIF: not what is asked here
        try:
            image: Image.Image = Image.open(io.BytesIO(data))
            image = image.convert("RGB")
        except (Image.DecompressionBombError, MemoryError) as error:
            raise ValueError(f"it claims more pixels than can be decoded: {error}") from None
    if size is not None:
        image = _resize_and_crop(image, size)
    return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))


def _resize_and_crop(image: Any, size: int) -> Any:
    from PIL import Image

    width, height = image.size
    # One resampling pass over the source box that the centre crop keeps: the same pixels, less work.
    side = min(width, height) * 224 / 256
    left, top = (width - side) / 2, (height - side) / 2
    return image.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))


def decode_array(array: Any) -> Any:
    """Return an array that torch can hold: unsigned integers wider than a byte become int64."""
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        return array.astype(np.int64)
    if array.dtype.byteorder == ">":
        return array.astype(array.dtype.newbyteorder("="))
    return array


def decode_wav(data: bytes | memoryview) -> Any:
    """Return 16-bit PCM as float32 in [-1, 1], shape (frames,) or (frames, channels).

    Raises:
        ValueError: another sample width.
    """
    import wave

    try:
        with wave.open(io.BytesIO(data)) as audio:
            channels, width = audio.getnchannels(), audio.getsampwidth()
            frames = audio.readframes(audio.getnframes())
    except wave.Error as error:
        raise ValueError(str(error)) from None
    if width != 2:
        raise ValueError(f"PCM of {8 * width} bits; only 16 are decoded")
    sound = np.frombuffer(frames, "<i2").astype(np.float32) / 32768
    return sound.reshape(-1, channels) if channels > 1 else sound
