"""Hardware backends and fused operations: the device and its executor."""
