"""kvcache's index beside other prefix indexes, Rust and Python, in one report."""
