"""`/v1/messages`: Anthropic's Messages API over the model's chat template.

`request` reads bodies (`conversation` the messages, `tools` what may be called), `blocks` makes
content blocks and their events of an output, `answers` sends them, `errors` has the API's own shape
of errors, which every answer under this path has.
"""
