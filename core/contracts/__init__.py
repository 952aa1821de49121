"""The contracts: one file per kind, each the manual of what an implementation owes.

Letters for shapes, here and everywhere: B requests in a step, R request slots, T tokens in a step,
Q rows with logits, V vocabulary, H query heads, G key-value heads, D head size, N pages, P tokens
in a page.
"""
