"""Writes train.py's data: random sentences, encoded by character."""

import os
import pickle
import random

import numpy as np

WORDS = ["a", "the", "one", "some", "model", "layer", "token", "loss", "gradient", "learns", "reads", "and"]

draw = random.Random(0)
text = "".join(" ".join(draw.choices(WORDS, k=draw.randint(3, 9))).capitalize() + ".\n" for _ in range(4000))
characters = sorted(set(text))
ids = np.array([characters.index(character) for character in text], dtype=np.uint16)
folder = os.path.join("data", "characters")
os.makedirs(folder, exist_ok=True)
split = int(0.9 * len(ids))
ids[:split].tofile(os.path.join(folder, "train.bin"))
ids[split:].tofile(os.path.join(folder, "val.bin"))
with open(os.path.join(folder, "meta.pkl"), "wb") as file:
    pickle.dump({"vocab_size": len(characters)}, file)
