"""Fused operations: faster versions of what `camshaft.ops` defines."""
