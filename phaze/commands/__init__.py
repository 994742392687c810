"""The verbs of the command line, one file each; what a verb needs is imported when it is used."""
