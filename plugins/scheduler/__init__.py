"""Schedulers and step-time predictors: what runs in the next step."""
