"""Every strategy of the engine, each using only what a third party could use."""
