"""Reasoning in a model's text: incremental splitters by the tags that models put around it.

Pure: text goes in, events come out, whatever the pieces it comes in. No HTTP, no protobuf.
"""
