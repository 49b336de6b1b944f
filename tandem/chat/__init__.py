"""`tandem chat`: a conversation in the terminal, with what speculation does made visible (docs/chat.md)."""
