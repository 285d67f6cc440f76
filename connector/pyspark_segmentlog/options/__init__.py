"""Options of reads and writes: strings in, checked values out."""
