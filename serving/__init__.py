"""What gateway, workers and the command line share to serve HTTP: the server, its connections, tasks with an owner."""
