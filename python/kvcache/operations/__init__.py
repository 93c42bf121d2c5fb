"""What a cache does: one file a verb, and what the verbs share."""
