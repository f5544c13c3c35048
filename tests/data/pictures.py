"""Real image files of every sort that a folder of photographs holds."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

ORIENTATION = 0x0112


def scene(width: int, height: int) -> Image.Image:
    """Red to the right, green downwards, with a blue corner: it shows how it was turned."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[..., 0] = np.linspace(0, 255, width)[None, :]
    pixels[..., 1] = np.linspace(0, 255, height)[:, None]
    pixels[: height // 4, : width // 4, 2] = 255
    return Image.fromarray(pixels)


def turned(image: Image.Image, orientation: int) -> bytes:
    """A JPEG that lies as a camera held on its side saves it: upright only by its EXIF."""
    undo = {3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90}[orientation]
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    file = io.BytesIO()
    image.transpose(undo).save(file, "JPEG", quality=95, exif=exif)
    return file.getvalue()


def encoded(image: Image.Image, format: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def fill(folder: Path) -> dict[str, bytes]:
    """Write a folder; returns what is in it. The bad ones are called `bad_…`."""
    image = scene(160, 120)
    jpeg = encoded(image, "JPEG", quality=95)
    png = encoded(image, "PNG")
    see_through = image.convert("RGBA")
    see_through.putalpha(100)
    files = {
        "photo1.jpg": jpeg,
        "photo2.JPEG": encoded(scene(400, 300), "JPEG", quality=95),
        "photo10.png": png,
        "web.webp": encoded(image, "WEBP", lossless=True),
        "side.jpg": turned(image, 6),
        "upside.jpg": turned(image, 3),
        "grey.png": encoded(image.convert("L"), "PNG"),
        "grey16.png": encoded(
            Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257), "PNG"
        ),
        "cmyk.jpg": encoded(image.convert("CMYK"), "JPEG", quality=95),
        "palette.png": encoded(image.quantize(64), "PNG"),
        "palette_clear.png": encoded(image.quantize(64), "PNG", transparency=bytes(range(64))),
        "alpha.png": encoded(see_through, "PNG"),
        "tiny.png": encoded(scene(4, 4).resize((1, 1)), "PNG"),
        "bad_cut.jpg": jpeg[: len(jpeg) // 2],
        "bad_cut.png": png[: len(png) // 2],
        "bad_cut.webp": encoded(image, "WEBP")[:60],
        "bad_empty.png": b"",
        "bad_text.jpg": b"This is a text, not a photograph.\n",
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return files
