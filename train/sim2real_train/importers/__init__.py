"""Readers of policies that others trained: their networks, and what their files say of a contract."""
