"""Commands of the command line, one file each. A command imports what it needs when it runs."""
