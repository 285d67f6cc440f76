"""Writers and readers that do their worst at the same time, and what has to be true of it.

`plan` says from a seed what each writer does, `writer` and `reader` are programs, `ledger` is what
they write down, and `verdict` holds one against the other.
"""
