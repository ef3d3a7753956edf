"""Load one Edge YAML file into an immutable config, or report every problem in it at its place."""
