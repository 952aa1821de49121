"""A scheduler for camshaft: the shortest prompt goes first."""
