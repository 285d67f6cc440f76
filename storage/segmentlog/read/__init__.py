"""Reading: one moment of a directory, look-ups, slices, scans."""
