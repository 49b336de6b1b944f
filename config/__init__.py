"""Settings, the built-in model pairs, and the Prometheus and Grafana files."""
