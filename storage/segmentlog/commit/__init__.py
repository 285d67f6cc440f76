"""One atomic change of a log directory: guard, intent, decision, finish, undo."""
