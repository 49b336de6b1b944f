"""The gateway's side of the wire: one worker's client, what keeps it honest, and pools of workers."""
