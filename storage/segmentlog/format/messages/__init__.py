"""Records that Kafka writes about itself: their schemas as lines of text, one parser, one reader.

A record type of a later Kafka is a line in `segmentlog.format.messages.lines`.
"""
