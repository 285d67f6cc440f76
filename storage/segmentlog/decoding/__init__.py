"""Keys and values as the columns of their schemas: Avro, with the schemas of a registry.

Packages of the extra ``schemas`` decode, and are imported at the first use.
"""
