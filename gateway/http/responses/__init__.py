"""OpenAI's Responses API: `POST /v1/responses` and what is kept of its answers.

A response is one generation through the model's chat template. Items go in (`items`) and come out
(`output_items`), as one object (`answers`) or as typed events in OpenAI's order; `store` keeps
finished ones, within bounds and on this gateway only, for `previous_response_id` and `GET`.
"""
