"""Scheduler `slo`: priorities and deadlines."""
