"""Token files and the sample order of dtrain, written a second time from docs/DATA_FORMAT.md.

Being independent of the C++ code, it also proves that the documented order is the real one.
"""
import struct

import numpy

MASK = (1 << 64) - 1


def mix_bits(x):
    """The finaliser of SplitMix64."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


class IndexPermutation:
    """A 4-round Feistel network over the next even power of two, with cycle walking."""

    def __init__(self, count, seed):
        self.count, self.seed, self.half_bits = count, seed, 1
        while self.half_bits < 31 and (1 << (2 * self.half_bits)) < count:
            self.half_bits += 1

    def _once(self, index):
        mask = (1 << self.half_bits) - 1
        left, right = index >> self.half_bits, index & mask
        for r in range(4):
            round_key = mix_bits((self.seed + r) & MASK)
            left, right = right, left ^ (mix_bits(right ^ round_key) & mask)
        return (left << self.half_bits) | right

    def __call__(self, index):
        index = self._once(index)
        while index >= self.count:
            index = self._once(index)
        return index


class TokenSampler:
    """Samples of one llm.c u16 file in the order of dtrain's training."""

    def __init__(self, path, sequence_length, global_batch, seed):
        with open(path, "rb") as file:
            header = file.read(1024)
            magic, version, count = struct.unpack_from("<3i", header)
            if (magic, version) != (20240520, 1):
                raise ValueError(f"{path}: magic {magic}, version {version}")
            self.tokens = numpy.fromfile(file, dtype=numpy.uint16, count=count).astype(numpy.int64)
        self.sequence_length, self.global_batch, self.seed = sequence_length, global_batch, seed
        self.windows = (count - 1) // sequence_length

    def sample(self, step, position):
        """The sequence_length + 1 tokens of one sample."""
        number = step * self.global_batch + position
        epoch, window = divmod(number, self.windows)
        permutation = IndexPermutation(self.windows, mix_bits(self.seed ^ mix_bits(epoch)))
        start = permutation(window) * self.sequence_length
        return self.tokens[start : start + self.sequence_length + 1]

    def micro_batch(self, step, micro_step, rank, world, micro_batch):
        first = (micro_step * world + rank) * micro_batch
        return numpy.stack([self.sample(step, first + i) for i in range(micro_batch)])
