"""Training runtimes: layouts that each can run, reasons against the others, and configuration files."""
