"""Writes scikit-learn's digits (1,797 images of 8 x 8 pixels) in the form of CIFAR-10 and as folders of PNG images, one for each class.

Usage: digits.py FOLDER. Every fifth image is held out. Images are enlarged four times and repeated over three channels."""

import sys
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

folder = Path(sys.argv[1])
digits = load_digits()
images = np.rint(digits.images / 16 * 255).astype(np.uint8).repeat(4, axis=1).repeat(4, axis=2)
held_out = np.arange(len(images)) % 5 == 4

binary = folder / "cifar"
binary.mkdir(parents=True, exist_ok=True)
for name, chosen in [("data_batch_1.bin", ~held_out), ("test_batch.bin", held_out)]:
    records = [
        bytes([label]) + image.tobytes() * 3 for image, label in zip(images[chosen], digits.target[chosen])
    ]
    (binary / name).write_bytes(b"".join(records))

for index, (image, label) in enumerate(zip(images, digits.target)):
    part = folder / "images" / ("test" if held_out[index] else "train") / str(label)
    part.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).convert("RGB").save(part / f"{index:04}.png")
