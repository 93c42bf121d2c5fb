"""What a cache of a given size would have saved on traffic that was recorded.

`traces` reads requests from a file, `simulate` runs them through the real `PrefixIndex` (bookkeeping
only, no arrays), `tree` and `optimum` say what no cache of that size could beat, `model_size` how many
bytes a token of a model takes. `kvcache replay` is the command on top. Nothing here imports MLX.

One request is a lookup that refreshes recency, then an insert of the whole prompt; requests come one at
a time, in the file's order, and what a model answered is not stored.
"""
