"""What `pagewire.LLM` consists of: prompts into batches, batches through a gateway, a local stack.

`prompts` reads what users give, `batches` cuts it and puts outputs together, `runner` sends batches
and deals with failures, `local_stack` starts and ends the services, `progress` shows how far it is.
"""
