"""Writers and readers at work at the same time, and the properties that must hold.

`plan` derives each writer's operations from a seed, `writer` and `reader` are programs, `ledger`
is what they note, and `verdict` compares their notes.
"""
