"""Whether the parts of a step should run side by side: measured operations, packed by a model."""
