"""What each model is asked to do: prefill, decode and a mixed run; tokens and lengths follow from the seed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Phase = Literal["prefill", "decode", "mixed"]
Ids = npt.NDArray[np.int64]

CONTEXT = 32
"""Tokens that each sequence has behind it when decoding begins."""
STEPS = 6
"""Decoding steps in one sample."""
REQUESTS = 8


@dataclass(frozen=True)
class Cell:
    """One kind of work. Lengths are per sequence, `batch` of them; `outputs` tokens are generated for each.

    prefill   one prompt, up to its first output token
    decode    `outputs` steps of a whole batch behind `prompts` tokens of context, which are not timed
    mixed     everything of a few requests of different lengths, from the first prompt to the last output
    """

    phase: Phase
    prompts: tuple[int, ...]
    outputs: tuple[int, ...]

    @property
    def id(self) -> str:
        if self.phase == "prefill":
            return f"prefill/{self.prompts[0]}"
        return f"decode/b{self.batch}" if self.phase == "decode" else "mixed"

    @property
    def batch(self) -> int:
        return len(self.prompts)

    @property
    def tokens(self) -> int:
        """Tokens that one sample's `seconds` stand for: of a decode, one step."""
        if self.phase == "prefill":
            return sum(self.prompts)
        return self.batch if self.phase == "decode" else sum(self.prompts) + sum(self.outputs)

    @property
    def unit(self) -> str:
        words = {"prefill": "prompt tokens", "decode": "output tokens", "mixed": "prompt and output tokens"}
        return words[self.phase]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def cells(prefill: tuple[int, ...], decode: tuple[int, ...], mixed: bool, seed: int) -> list[Cell]:
    """The cells that the options name, cheapest kind first."""
    found = [Cell("decode", (CONTEXT,) * batch, (STEPS,) * batch) for batch in decode]
    found += [Cell("prefill", (tokens,), (1,)) for tokens in prefill]
    if mixed:
        found.append(Cell("mixed", *lengths(REQUESTS, seed)))
    return found


def lengths(requests: int, seed: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Prompt and output lengths of the mixed run: log-normal as of people's chats, a fourth of a few hundred tokens.

    Prompts of 16 to 192 tokens around 64, outputs of 4 to 48 around 16.
    """
    rng = np.random.default_rng([seed, 20])
    prompts = np.clip(rng.lognormal(np.log(64), 0.6, requests), 16, 192).astype(int)
    outputs = np.clip(rng.lognormal(np.log(16), 0.6, requests), 4, 48).astype(int)
    return tuple(prompts.tolist()), tuple(outputs.tolist())


def token_ids(vocabulary: int, shape: tuple[int, ...], *key: int) -> Ids:
    """Ids of one sample: the same for every engine, other ones in every round. The first few are often special."""
    ids: Ids = np.random.default_rng(list(key)).integers(min(3, vocabulary - 1), vocabulary, shape)
    return ids
