"""What a cache holds: the index and the arrays under its ids."""
