"""Datacenter or laptop: what a simulator must learn from the logs of a real robot."""
