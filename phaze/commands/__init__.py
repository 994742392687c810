"""The commands of `phaze`. A command imports what it needs when it runs."""
