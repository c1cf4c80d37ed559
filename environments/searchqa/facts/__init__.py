"""The embedded source: passages and multi-hop questions made from the facts of installed packages, or about made-up islands."""
