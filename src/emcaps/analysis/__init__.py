"""What routing does in a network: how sharp it is, and where a class capsule's data came from."""
