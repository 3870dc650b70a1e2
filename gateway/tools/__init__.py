"""Tool calls in a model's text: incremental parsers by format, and the schemas that force a call.

Pure: text goes in, events come out, whatever the pieces it comes in. No HTTP, no protobuf.
"""
