"""``python -m segmentlog``: the command line, where its script is not on the path."""

from segmentlog_command import main

if __name__ == "__main__":
    main()
