"""One request's rounds: the loop, the target's and the draft's side, recovery, adaptation."""
