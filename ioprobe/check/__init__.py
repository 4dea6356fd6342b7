"""``ioprobe check`` and ``compare``: facts in, judgement out; loads, lists and measures what the rules need."""
