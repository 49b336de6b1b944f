"""POST /v1/responses: OpenAI's Responses API without its memory. Nothing is stored, so nothing can be referred to."""
