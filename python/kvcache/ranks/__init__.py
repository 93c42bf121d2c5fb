"""Agreement of the ranks of one model."""
