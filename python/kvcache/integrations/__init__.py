"""Drop-in adapters for existing engines: each has the methods that its engine already calls."""
