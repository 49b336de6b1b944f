"""POST /v1/responses: OpenAI's Responses API without its memory: nothing is stored, so nothing can be referred to."""
