"""The bench: a simulated robot behind the wire, latency budgets as verdicts, and reports."""
