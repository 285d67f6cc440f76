"""Clone a topic: under another name, with other partitions, another codec, other values."""
