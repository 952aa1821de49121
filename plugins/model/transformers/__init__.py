"""Models of the transformers library, with our attention, pages, loop and sampler."""
