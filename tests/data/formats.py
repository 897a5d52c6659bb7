"""Writes formats.bin: rows of random bytes of each number format, as the gguf package unpacks them.

    python3 formats.py formats.bin        (needs numpy and gguf)

Records: name (16 bytes, zero padded), values and bytes (u32 each), the row, its floats.
"""

import struct
import sys

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize

# Where a block keeps its f16 scales: random bits there would be mostly NaN, infinity or absurd.
F16 = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82],
    "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0],
    "MXFP4": [], "TQ1_0": [52], "TQ2_0": [64],
}
SCALES = np.array([0.013, -0.5, 6e-6, 0.0, 2.25, -0.0, 0.0071], dtype=np.float16)

rng = np.random.default_rng(7)
with open(sys.argv[1], "wb") as f:
    for name, places in F16.items():
        kind = T[name]
        values, size = GGML_QUANT_SIZES[kind]
        blocks = 2 if values == 256 else 8
        row = rng.integers(0, 256, (blocks, size), dtype=np.uint8)
        for at in places:
            row[:, at : at + 2] = rng.choice(SCALES, blocks).view(np.uint8).reshape(blocks, 2)
        if name == "MXFP4":
            row[:, 0] = [0, 1, 2, 120, 126, 127, 128, 135]
        floats = dequantize(row.reshape(-1), kind).astype(np.float32).reshape(-1)
        f.write(struct.pack("16sII", name.encode(), floats.size, row.size))
        f.write(row.tobytes() + floats.tobytes())
