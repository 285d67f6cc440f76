"""Random sequences of operations on a log directory, checked against a plain model.

`model` is what a reader must see, `looking` is what a reader sees, `operations` are what is done
to both, `faults` cut an operation off, and `playing` plays a sequence and shortens a failing one.
"""
