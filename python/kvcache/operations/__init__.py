"""Operations on a cache: one file per verb, and what the verbs share."""
