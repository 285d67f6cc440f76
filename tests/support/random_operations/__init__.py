"""Random operations on a log directory, checked against one plain model.

`model` is what a reader must see, and `operations` are what is done to a directory and to a model.

- One after the other: `playing` plays a sequence and shortens a failing one, `faults` cut an
  operation off, and `looking` compares what a reader sees after each step.
- Side by side: `run` starts processes, `writer` does operations and upkeep and is killed,
  `reader` reads, `stream` is a job of Spark's, and `verdict` applies the operations to the model,
  in the order of their decisions in the `ledger`, and compares what the readers have noted.
"""
