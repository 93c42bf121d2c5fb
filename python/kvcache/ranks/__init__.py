"""Agreement among the ranks that run one model."""
