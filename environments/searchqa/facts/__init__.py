"""The embedded questions and passages, from installed packages or about made-up islands."""
