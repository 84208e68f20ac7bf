"""The part of it that sim2real uses."""
