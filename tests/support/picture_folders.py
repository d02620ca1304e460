"""Small pictures in folders and tar archives, made with Pillow and GNU tar."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = {"blue": 12, "red": 30}
PACK = """\
cd pictures && mkdir -p ../shards && find . -type f | LC_ALL=C sort \\
  | shuf --random-source=<(yes) | split -n r/4 --filter='
      tar --create --file=../shards/$FILE.tar --files-from=- --mtime=@0 \\
          --owner=0 --group=0 --numeric-owner --mode=644' - part-
"""
"""How docs/feeding.md packs a folder into four shards."""


def make_pictures(place: Path, classes: Mapping[str, int] = CLASSES) -> Path:
    """Write pictures of 12 x 10 pixels, each class in a colour of its own."""
    generator = np.random.default_rng(0)
    for channel, (name, count) in enumerate(sorted(classes.items())):
        (place / name).mkdir(parents=True)
        for number in range(count):
            pixels = generator.integers(0, 60, (10, 12, 3), dtype=np.uint8)
            pixels[..., 2 * (1 - channel)] += 150
            Image.fromarray(pixels).save(place / name / f"{number:03}.png")
    return place


def pack(place: Path) -> Path:
    """Pack ``pictures`` in a folder into ``shards`` beside it."""
    subprocess.run(["bash", "-ec", PACK], cwd=place, check=True)
    return place / "shards"
