"""From a range of offsets to Arrow: plan, look up, scan."""
