"""kvcache's index against other prefix indexes, Rust and Python, in one report."""
