"""Engines in processes of their own, so that they can be measured in turns on one machine."""
