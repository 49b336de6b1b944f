"""The OpenAI API: what requests may hold, what they mean, and what answers look like."""
