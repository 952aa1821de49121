"""Hardware backends: the device, its memory, streams and graphs."""
