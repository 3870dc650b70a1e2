"""The OpenAPI document that `/openapi.json` serves.

It is written by hand beside the readers and writers that it tells of, and held true by tests:
each documented field is one that its reader asks for, and is accepted; each documented status is
seen; answers have no field that the document lacks.
"""
