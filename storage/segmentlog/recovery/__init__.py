"""After a crash: finish or undo commits, cut logs to what is valid, build indexes again."""
