"""The cold side: every run without kvcache, in a process of its own.

``python -m architectures.cold OUTPUT`` writes the logits of each forward pass of each run to an
.npz file, under ``case/run/number``.
"""

from __future__ import annotations

import sys

import numpy as np

from .cases import CASES, Kinds, play, runs
from .speculative import cold_turns


def main(output: str) -> None:
    arrays = dict(cold_turns())
    for case in CASES:
        model = case.build()
        for name, steps in runs(Kinds.of(case.fresh(model))).items():
            for number, logits in enumerate(play(case, model, case.fresh(model), steps)):
                arrays[f"{case.name}/{name}/{number}"] = logits
    np.savez(output, **arrays)
    if "kvcache" in sys.modules:
        raise SystemExit("the cold side imported kvcache")


if __name__ == "__main__":
    main(sys.argv[1])
