"""The commands of `phaze`, each of which imports what it needs only when it runs."""
