"""A model whose answers can be read: it recites. Its weights are constructed, not trained.

The first layer's heads look one to ten tokens back, by rotary positions alone, and write what they find there beside
each token. The second layer's head is an induction head: it looks for an earlier place whose last ten tokens are the
same as now, and says what follows there. Both layers read the paged KV cache. So a wrong block, or a block with another
prompt's text, shows as wrong letters, and often as another user's.

A letter is six bits, and a seventh for how loud it is: adapter 1 shouts.
"""

from collections.abc import Sequence

import numpy as np

from trtllm_kvfix.engine.model import Array, Layer, Model, rotary

QUIET = "\nabcdefghijklmnopqrstuvwxyz .,:;?'-()0123456789/+=*&%$#<>[]{}|~`"
LOUD = '\rABCDEFGHIJKLMNOPQRSTUVWXYZ_!"@^\\¡¿«»⓪①②③④⑤⑥⑦⑧⑨±¬÷§¶¤¥£¢©®°¹²³µª'
LETTERS = QUIET + LOUD
END = LETTERS.index("\n")
LOOKS_BACK = 10
BITS = 6
HEAD_SIZE = 64
SHARP = 40.0  # how much the place one token away counts less
MATCH = 1000.0  # for each bit of the last ten tokens
EARLY = 2.0  # for each position: of equal places the first is taken

# Where things stand in a token's vector.
TOKEN, ONE, POSITION = slice(0, BITS + 1), BITS + 1, BITS + 2
BEFORE = BITS + 3  # what stands one back, two back, ...
SAID = BEFORE + LOOKS_BACK * BITS
WIDTH = SAID + BITS + 1
LOUDNESS = SAID + BITS


def encode(text: str) -> list[int]:
    return [LETTERS.index(letter) for letter in text]


def decode(tokens: Sequence[int]) -> str:
    return "".join(LETTERS[token] for token in tokens)


def reciter(positions: int) -> Model:
    """For sequences of up to this many tokens."""
    cosines, sines = rotary(positions, HEAD_SIZE)
    codes = _codes()
    embedding = np.zeros((len(LETTERS), WIDTH), np.float32)
    embedding[:, TOKEN] = codes
    embedding[:, ONE] = 1
    place = np.zeros((positions, WIDTH), np.float32)
    place[:, POSITION] = np.arange(positions)
    unembedding = np.zeros((WIDTH, len(LETTERS)), np.float32)
    unembedding[SAID:] = codes.T
    adapters_in = np.zeros((2, WIDTH, 1), np.float32)
    adapters_out = np.zeros((2, 1, WIDTH), np.float32)
    adapters_in[1, LOUDNESS], adapters_out[1, 0, LOUDNESS] = 1, -2
    layers = (_looks_back(cosines, sines), _finds())
    return Model(
        embedding, layers, unembedding, adapters_in, adapters_out, cosines, sines, place, 1, HEAD_SIZE, normed=False
    )  # fmt: skip


def _codes() -> Array:
    """[letters, 7]: the bits of each, as 1 and -1; the last is how loud."""
    numbers = np.arange(len(LETTERS))
    bits = numbers[:, None] >> np.arange(BITS + 1) & 1
    return (bits * 2 - 1).astype(np.float32)


def _looks_back(cosines: Array, sines: Array) -> Layer:
    """All keys are one vector, rotated by the position; head k's query is the same vector, rotated k back."""
    half = HEAD_SIZE // 2
    query = np.zeros((WIDTH, LOOKS_BACK, HEAD_SIZE), np.float32)
    key = np.zeros((WIDTH, HEAD_SIZE), np.float32)
    value = np.zeros((WIDTH, HEAD_SIZE), np.float32)
    out = np.zeros((LOOKS_BACK, HEAD_SIZE, WIDTH), np.float32)
    key[ONE, :half] = 1
    value[:BITS, :BITS] = np.eye(BITS)
    for head in range(LOOKS_BACK):
        back = head + 1
        query[ONE, head, :half] = SHARP * cosines[back]
        query[ONE, head, half:] = -SHARP * sines[back]
        out[head, :BITS, BEFORE + head * BITS : BEFORE + (head + 1) * BITS] = np.eye(BITS)
    return Layer(query.reshape(WIDTH, -1), key, value, out.reshape(-1, WIDTH), rotary=True)


def _finds() -> Layer:
    """A key is what stands before its token, a query what stands up to now, and a value the token."""
    query = np.zeros((WIDTH, HEAD_SIZE), np.float32)
    key = np.zeros((WIDTH, HEAD_SIZE), np.float32)
    value = np.zeros((WIDTH, HEAD_SIZE), np.float32)
    out = np.zeros((HEAD_SIZE, WIDTH), np.float32)
    dims = LOOKS_BACK * BITS
    key[BEFORE : BEFORE + dims, :dims] = np.eye(dims)
    key[POSITION, dims] = -1
    query[:BITS, :BITS] = MATCH * np.eye(BITS)
    query[BEFORE : BEFORE + dims - BITS, BITS:dims] = MATCH * np.eye(dims - BITS)
    query[ONE, dims] = EARLY
    value[TOKEN, : BITS + 1] = np.eye(BITS + 1)
    out[: BITS + 1, SAID:] = np.eye(BITS + 1)
    return Layer(query, key, value, out, rotary=False)
