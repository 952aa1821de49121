"""KV manager `radix`: a tree over runs of tokens."""
