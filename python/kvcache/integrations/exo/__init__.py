"""exo's engine on kvcache.

In exo's ``engines/mlx`` the import of ``KVPrefixCache`` is the line to change::

    from kvcache.integrations.exo import KVPrefixCache

exo need not be installed: its snapshots and media regions are read by their attributes.
"""

from kvcache.integrations.exo.prefix_cache import KVPrefixCache

__all__ = ["KVPrefixCache"]
