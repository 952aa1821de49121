"""KV manager `tiered`: pages beyond the device, in tiers."""
