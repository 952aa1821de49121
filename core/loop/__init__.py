"""The step loop: plan, commit, launch, sample, settle. It owns slots, capacity and finishing."""
