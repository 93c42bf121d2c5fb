"""Every scenario in which one rank is not as the others, each with each rank in that part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tests.ranks import counted, diverged, failing

if TYPE_CHECKING:
    from collections.abc import Mapping

SCENARIOS: Final = {
    scenario.__name__: scenario for scenario in (*failing.SCENARIOS, *diverged.SCENARIOS, *counted.SCENARIOS)
}


def run(group: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """``options`` may name the scenarios to run."""
    names = options.get("scenarios") or SCENARIOS
    return {name: [SCENARIOS[name](group, broken).steps for broken in range(group.size())] for name in names}
