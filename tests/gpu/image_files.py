"""Small image files on disk: writes them, and reads them as a training does.

As a program: image_files.py DIRECTORY COUNT. The files are PNGs where Pillow is installed, else
arrays in NumPy's format; the program prints which.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import torch

SIDE = 32
CLASSES = 10


def write_images(directory: Path, count: int) -> str:
    """Write so many images of random squares and noise; the kind of file that was written."""
    random = np.random.default_rng(7)
    directory.mkdir(parents=True, exist_ok=True)
    has_pillow = importlib.util.find_spec("PIL") is not None
    for number in range(count):
        label = number % CLASSES
        pixels = random.integers(0, 64, (SIDE, SIDE, 3), dtype=np.uint8)
        low = 2 * label
        pixels[low : low + 12, low : low + 12] += np.uint8(128)
        name = directory / f"{label}_{number:06}"
        if has_pillow:
            from PIL import Image

            Image.fromarray(pixels).save(f"{name}.png")
        else:
            np.save(f"{name}.npy", pixels)
    return "png" if has_pillow else "npy"


class ImageFiles(torch.utils.data.Dataset):
    """The files of a directory, decoded, flipped at random and scaled.

    Args:
        directory: What `write_images` has filled.
    """

    def __init__(self, directory: Path) -> None:
        self._paths = sorted(str(path) for path in directory.iterdir())

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path = self._paths[index]
        pixels = read_pixels(path)
        if torch.rand(()) < 0.5:
            pixels = pixels[:, ::-1]
        image = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))
        return image.float().div_(127.5).sub_(1.0), int(Path(path).name.partition("_")[0])


def read_pixels(path: str) -> np.ndarray:
    """Decode one file: height x width x 3, 8 bits."""
    if path.endswith(".npy"):
        return np.asarray(np.load(path))
    from PIL import Image

    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


if __name__ == "__main__":
    print(write_images(Path(sys.argv[1]), int(sys.argv[2])))
