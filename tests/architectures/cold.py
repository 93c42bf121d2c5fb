"""The cold side: every run without kvcache, in a process of its own.

``python -m architectures.cold OUTPUT`` writes the logits of each forward pass of each run to an
.npz file, under ``case/run/number``; on a GPU also how far apart repeats of it are, as ``…/spread``.
A model that the device cannot run is left out.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from .devices import REPEATS, lacking, repeated, spread
from .runs import CASES, Kinds, play, runs
from .speculative import cold_turns

if TYPE_CHECKING:
    from .runs import Case, Step


def main(output: str) -> None:
    turns = [cold_turns() for _ in range(REPEATS)]
    arrays = dict(turns[0])
    for name in [name for name in arrays if name.endswith("/0")]:
        # Another token at one place is another text from there on: such repeats cannot be compared.
        alike = [turn[name] for turn in turns if turn[name].shape == arrays[name].shape]
        [apart] = spread([[logprobs] for logprobs in alike])
        if apart or len(alike) < len(turns):
            arrays[f"{name}/spread"] = np.array(apart if len(alike) == len(turns) else np.inf)
    for case in CASES:
        if lacking(case) is not None:
            continue
        model = case.build()
        for name, steps in runs(Kinds.of(case.fresh(model))).items():
            repeats = repeated(partial(_played, case, model, steps))
            for number, (logits, apart) in enumerate(zip(repeats[0], spread(repeats), strict=True)):
                arrays[f"{case.name}/{name}/{number}"] = logits
                if apart:
                    arrays[f"{case.name}/{name}/{number}/spread"] = np.array(apart)
    np.savez(output, **arrays)
    if "kvcache" in sys.modules:
        raise SystemExit("the cold side imported kvcache")


def _played(case: Case, model: Any, steps: list[Step]) -> list[np.ndarray]:
    return play(case, model, case.fresh(model), steps)


if __name__ == "__main__":
    main(sys.argv[1])
