"""How long tests wait for what should come: it only bounds a hang, on the busiest machine too."""

from __future__ import annotations

from typing import Final

PATIENCE: Final = 900
