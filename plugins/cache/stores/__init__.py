"""Where tiers keep pages, and the threads that bring them there."""
