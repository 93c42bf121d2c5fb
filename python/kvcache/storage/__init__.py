"""Storage: the index and the arrays stored under its ids."""
