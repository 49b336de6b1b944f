"""Names of TANDEM_… variables that are not settings of a service. Imports nothing, so a child can import it first."""

CONFIG_VARIABLE = "TANDEM_CONFIG"
"""The YAML file of settings, if no --config names one."""

CACHE_VARIABLE = "TANDEM_CACHE"
"""The folder for converted models."""

LIFELINE_VARIABLE = "TANDEM_LIFELINE"
"""Set by `tandem up` for its children: see tandem.lifeline."""

API_KEY_VARIABLE = "TANDEM_API_KEY"
"""A client's key for a gateway: what `tandem bench` sends."""

ALSO_KEY_VARIABLE = "TANDEM_ALSO_KEY"
"""The key that `tandem bench` sends to the servers at --also."""
