"""The workers: their clients, whether they may be used, how long they take, pools to choose from."""
