"""What both workers share: the HTTP shell, the session table, metrics."""
