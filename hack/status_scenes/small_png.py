"""PNG files with a palette of 256 colours, a third as large as those that Chromium writes."""

import base64
import struct
import zlib
from typing import Any, Final

from playwright.sync_api import Browser

_MOST_COLOURS: Final = 256
_INDEX: Final = """async ([png, most]) => {
  const image = new Image();
  image.src = `data:image/png;base64,${png}`;
  await image.decode();
  const canvas = new OffscreenCanvas(image.width, image.height), paint = canvas.getContext("2d");
  paint.drawImage(image, 0, 0);
  const pixels = new Uint32Array(paint.getImageData(0, 0, image.width, image.height).data.buffer);
  const counts = new Map();
  for (const pixel of pixels) counts.set(pixel, (counts.get(pixel) ?? 0) + 1);
  const distance = (a, b) => [0, 8, 16].reduce((sum, bit) =>
    sum + ((a >> bit & 255) - (b >> bit & 255)) ** 2, 0);
  // The most frequent colours, and rather those unlike the ones before than shades of them.
  const ranked = [...counts].sort((a, b) => b[1] - a[1]).map(([pixel]) => pixel), palette = [];
  for (const unlike of [400, 100, 25, 1])
    for (const pixel of ranked)
      if (palette.length < most && palette.every((each) => distance(pixel, each) >= unlike))
        palette.push(pixel);
  const nearest = new Map(palette.map((pixel, index) => [pixel, index]));
  const find = (pixel) => palette.reduce((best, each, index) =>
    distance(pixel, each) < distance(pixel, palette[best]) ? index : best, 0);
  let text = "";
  for (const pixel of pixels) {
    if (!nearest.has(pixel)) nearest.set(pixel, find(pixel));
    text += String.fromCharCode(nearest.get(pixel));
  }
  return {width: image.width, height: image.height, indices: btoa(text),
    palette: palette.flatMap((pixel) => [pixel & 255, pixel >> 8 & 255, pixel >> 16 & 255])};
}"""


def reduced(running: Browser, png: bytes) -> bytes:
    """Return the picture with 256 of its colours; each other one becomes the nearest of them.

    Args:
        running: Decodes the picture.
        png: Without transparency.
    """
    page = running.new_page()
    found: Any = page.evaluate(_INDEX, [base64.b64encode(png).decode(), _MOST_COLOURS])
    page.close()
    width, height = found["width"], found["height"]
    indices = base64.b64decode(found["indices"])
    # Each line begins with its filter: none, since neighbours in a palette are not alike.
    lines = b"".join(
        b"\0" + indices[start : start + width] for start in range(0, width * height, width)
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        _chunk(kind, content)
        for kind, content in (
            (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
            (b"PLTE", bytes(found["palette"])),
            (b"IDAT", zlib.compress(lines, 9)),
            (b"IEND", b""),
        )
    )


def _chunk(kind: bytes, content: bytes) -> bytes:
    length, checksum = struct.pack(">I", len(content)), zlib.crc32(kind + content)
    return length + kind + content + struct.pack(">I", checksum)
