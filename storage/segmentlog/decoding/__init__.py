"""Keys and values as the columns of their schemas.  Formats: Avro, JSON, protobuf.

Packages of the extra ``schemas`` decode, and are imported at the first use.
"""
