"""KV managers, eviction policies and KV stores: where keys and values live."""
